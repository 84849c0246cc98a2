"""The catalogue of GPUs: names as drivers report them, dense peaks, and the user's own entries."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.at_least_one import at_least_one
from tests.tools.imports import ROOT, python_files
from tests.tools.known import known
from tests.tools.refusals import at_most_one_line, one_line
from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import CATALOGUE_VARIABLE, Gpu, find_gpu, known_gpu, load_catalogue, peak_flops

MIB = 2**20


@pytest.fixture(autouse=True, scope="module")
def _no_catalogue_of_the_users_own() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(CATALOGUE_VARIABLE, raising=False)
        yield


@pytest.mark.parametrize(
    ("driver_name", "name", "memory_mib", "bf16_tflops"),
    [
        ("NVIDIA B200", "B200 SXM", 183359, 2250),
        ("NVIDIA GB200", "GB200", 189471, 2500),
        ("NVIDIA H200", "H200 SXM", 143771, 989.5),
        ("NVIDIA H200 NVL", "H200 NVL", 143771, 835.5),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 81559, 989.5),
        ("H100-96", "H100 SXM 96GB", 97871, 989.5),
        ("NVIDIA H100 PCIe", "H100 PCIe", 81559, 756.5),
        ("NVIDIA H100 NVL", "H100 NVL", 95830, 835.5),
        ("NVIDIA GH200 480GB", "GH200 96GB", 97871, 989.5),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB", 81920, 312),
        ("NVIDIA A800-SXM4-80GB", "A800 SXM 80GB", 81920, 312),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB", 81920, 312),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB", 40960, 312),
        ("NVIDIA A10", "A10", 23028, 125),
        ("NVIDIA L40S", "L40S", 46068, 362.05),
        ("NVIDIA L4", "L4", 23034, 121),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 24564, 165.2),
        ("NVIDIA GeForce RTX 3090", "RTX 3090", 24576, 71),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB", 32768, None),
        ("Tesla T4", "T4", 15360, None),
    ],
)
def test_a_gpu_is_found_by_the_name_its_driver_reports(
    driver_name: str, name: str, memory_mib: int, bf16_tflops: float | None
) -> None:
    gpu = known(find_gpu(driver_name))
    assert gpu.name == name
    assert gpu.memory_bytes == memory_mib * MIB
    peak = peak_flops(driver_name, "bf16")
    assert (peak and peak[0]) == (bf16_tflops and bf16_tflops * 1e12)


@pytest.mark.parametrize("name", ["h100 sxm", "H200", "nvidia h100  80gb-hbm3", "V100", "a100", "mi300x"])
def test_a_gpu_is_found_by_the_name_people_use(name: str) -> None:
    assert find_gpu(name) is not None


@pytest.mark.parametrize(
    "name", ["", "NVIDIA", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A10G", "NVIDIA H20", "cpu", "H100 80GB"]
)
def test_a_part_of_a_gpu_or_another_gpu_is_not_taken_for_one(name: str) -> None:
    assert find_gpu(name) is None
    assert peak_flops(name, "bf16") is None


def test_a_peak_comes_with_its_source() -> None:
    peak = known(peak_flops("NVIDIA H200", "fp8"))
    assert "https://www.nvidia.com/en-us/data-center/h200/" in peak[1]


def test_a_data_type_that_a_gpu_does_not_have_has_no_peak() -> None:
    assert peak_flops("Tesla V100-SXM2-32GB", "fp16") is not None
    assert peak_flops("Tesla V100-SXM2-32GB", "bf16") is None
    assert peak_flops("NVIDIA H200", "int3") is None


def test_no_two_gpus_share_a_name() -> None:
    catalogue = load_catalogue()
    for gpu in at_least_one(catalogue):
        for name in (gpu.name, *gpu.names):
            assert find_gpu(name, catalogue) is gpu


@pytest.mark.parametrize("gpu", load_catalogue(), ids=lambda gpu: str(gpu.name))
def test_peaks_are_dense_and_double_from_one_data_type_to_the_next(gpu: Gpu) -> None:
    """A sparse figure among dense ones would be off by two."""
    peak = gpu.peak_tflops
    assert peak.get("bf16") in {None, peak.get("fp16")}
    if "tf32" in peak and peak["tf32"] != peak.get("fp32"):
        assert peak["bf16"] / peak["tf32"] == pytest.approx(2, rel=0.02)
    if "fp8" in peak:
        assert peak["fp8"] / peak["bf16"] == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize("gpu", load_catalogue(), ids=lambda gpu: str(gpu.name))
def test_what_is_told_of_a_gpu_has_a_source_and_a_link_a_bandwidth(gpu: Gpu) -> None:
    assert (gpu.memory_bytes is None) == (gpu.memory_source is None)
    assert (gpu.usable_memory_bytes is None) == (gpu.usable_memory_source is None)
    assert (gpu.sm_count is None) == (gpu.device_source is None)
    assert (gpu.link is None) == (gpu.link_gb_per_s is None)
    assert (gpu.host_link is None) == (gpu.host_link_gb_per_s is None)
    assert (gpu.network_gb_per_s is None) == (gpu.network_source is None)
    assert gpu.network_source is None or "https://" in gpu.network_source


@pytest.mark.parametrize("gpu", load_catalogue(), ids=lambda gpu: str(gpu.name))
def test_a_board_computes_as_much_per_watt_as_boards_of_its_kind_do(gpu: Gpu) -> None:
    """From a V100 (0.42 TFLOP/s of fp16 per watt) over the cut tensor cores of a desktop's GPU to a B200 (2.25)."""
    assert gpu.power_watts is None or 0.15 <= gpu.peak_tflops["fp16"] / gpu.power_watts <= 2.5


@pytest.mark.parametrize(("name", "watts"), [("H100 SXM", 700), ("A100 PCIe 40GB", 250), ("L4", 72), ("B300", None)])
def test_rated_power_is_that_of_the_datasheet(name: str, watts: float | None) -> None:
    gpu = known(find_gpu(name))
    assert gpu.power_watts == watts


_PCIE_X16 = {"PCIe 3 x16": 32, "PCIe 4 x16": 64, "PCIe 5 x16": 128}


@pytest.mark.parametrize("gpu", load_catalogue(), ids=lambda gpu: str(gpu.name))
def test_a_pcie_link_has_the_bandwidth_of_its_generation(gpu: Gpu) -> None:
    links = {gpu.link: gpu.link_gb_per_s, gpu.host_link: gpu.host_link_gb_per_s}
    told = {link: rate for link, rate in links.items() if link is not None and link.startswith("PCIe")}
    assert told == {link: _PCIE_X16[link] for link in told}


@pytest.mark.parametrize(
    ("name", "host_link", "network"),
    [
        ("H200", 128, 50),
        ("H100", 128, 50),
        ("A100", 64, 25),
        ("GH200", 900, None),
        ("B300", None, 100),
        ("L4", 64, None),
    ],
)
def test_links_to_the_host_and_to_other_nodes_are_those_of_the_usual_node(
    name: str, host_link: float | None, network: float | None
) -> None:
    gpu = known(find_gpu(name))
    assert (gpu.host_link_gb_per_s, gpu.network_gb_per_s) == (host_link, network)


def test_only_gpus_behind_a_switch_that_adds_up_reduce_in_their_links() -> None:
    """NVLink SHARP came with the third NVSwitch: HGX boards of Hopper and later, neither bridges nor A100."""
    reducing = {gpu.name for gpu in load_catalogue() if gpu.link_reduces}
    assert reducing == {"H100 SXM", "H200 SXM", "B200 SXM", "B300 SXM", "GB200"}


OWN = """
gpus:
  - {name: Future X1, names: [NVIDIA X1], memory_bytes: 1 TB, peak_tflops: {bf16: 5000}, source: my guess}
  - {name: H200 SXM, names: [NVIDIA H200], peak_tflops: {bf16: 900}, source: measured}
"""


def test_a_file_of_the_users_own_adds_gpus_and_goes_before_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN, encoding="utf-8")
    catalogue = load_catalogue(file)
    assert peak_flops("NVIDIA X1", "bf16", catalogue) == (5e15, "my guess")
    assert peak_flops("NVIDIA H200", "bf16", catalogue) == (9e14, "measured")
    assert peak_flops("NVIDIA H100 PCIe", "bf16", catalogue) is not None
    monkeypatch.setenv(CATALOGUE_VARIABLE, str(file))
    found = known(find_gpu("NVIDIA X1"))
    assert found.memory_bytes == 10**12


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "a mapping with the key gpus"),
        ("gpu: []", "a mapping with the key gpus"),
        ("gpus: [", "invalid YAML"),
        ("gpus: 5", "gpus"),
        ("gpus: [{name: X}]", "source: Field required"),
        ("gpus: [{name: X, source: y, peek_tflops: {}}]", "did you mean 'peak_tflops'"),
        ("gpus: [{name: X, source: y, peak_tflops: {bf17: 1}}]", "bf17.*'bf16'"),
        ("gpus: [{name: X, source: y, peak_tflops: {bf16: -1}}]", "greater than 0"),
        ("gpus: [{name: X, source: y, peak_tflops: {bf16: .inf}}]", "finite"),
        ("gpus: [{name: X, source: y, memory_bytes: 80G}]", "memory_bytes: .*ambiguous"),
        ("gpus: [{name: X, source: y, memory_bytes: 0}]", "memory_bytes: .*greater than 0"),
    ],
)
def test_a_catalogue_that_is_none_is_refused_in_one_line_with_its_path(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(content, encoding="utf-8")
    with one_line(str(file), match=said):
        load_catalogue(file)


def test_a_catalogue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_catalogue(tmp_path / "none.yaml")


@given(st.text(), st.text())
def test_any_name_is_found_or_not_available(name: str, precision: str) -> None:
    found = peak_flops(name, precision)
    assert found is None or found[0] > 0


@pytest.mark.parametrize(
    ("name", "usable_gib"),
    [
        ("H100", "79.18"),
        ("A100 SXM 80GB", "79.14"),
        ("A100 SXM 40GB", "39.49"),
        ("RTX 4090", "23.64"),
        ("H200", "139.80"),
        ("A30", "23.53"),
        ("B200", "178.35"),
        ("GB200", "184.31"),
        ("V100 SXM2 32GB", "31.74"),
        ("RTX 5090", "31.36"),
    ],
)
def test_a_gpu_holds_what_out_of_memory_messages_give_as_its_total(name: str, usable_gib: str) -> None:
    gpu = known(find_gpu(name))
    assert f"{known(gpu.capacity_bytes) / 2**30:.2f}" == usable_gib
    assert gpu.capacity_rule is None


@pytest.mark.parametrize("gpu", load_catalogue(), ids=lambda gpu: str(gpu.name))
def test_a_driver_of_nvidias_keeps_a_part_of_nvmls_total_and_amds_none(gpu: Gpu) -> None:
    if gpu.memory_bytes is None:
        assert gpu.capacity_bytes is None
        return
    kept_bytes = gpu.memory_bytes - known(gpu.capacity_bytes)
    assert (200 * MIB < kept_bytes < 1024 * MIB) if gpu.compute_capability else kept_bytes == 0


def test_a_gpu_without_usable_memory_is_given_the_share_of_the_nearest_of_its_kind() -> None:
    nvl, sxm = known(find_gpu("H200 NVL")), known(find_gpu("H200 SXM"))
    assert nvl.usable_memory_bytes is None
    assert nvl.capacity_bytes == sxm.usable_memory_bytes
    assert nvl.capacity_rule == "taken to be the same share of NVML's total as on H200 SXM"


@pytest.mark.parametrize(
    ("lines", "capacity_mib", "rule"),
    [
        ("", 100_000, "taken to be NVML's total"),
        ("compute_capability: '9.0'", 99_396, "taken to be the same share of NVML's total as on GH200 96GB"),
        ("compute_capability: '8.0'", 98_924, "taken to be the same share of NVML's total as on A100 SXM 80GB"),
        ("compute_capability: '6.0'", 99_396, "taken to be the same share of NVML's total as on GH200 96GB"),
        ("usable_memory_bytes: 99000 MiB", 99_000, None),
    ],
)
def test_a_users_gpu_with_nvmls_total_alone_has_a_capacity_that_says_its_rule(
    lines: str, capacity_mib: int, rule: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(f"gpus:\n  - name: Mine\n    memory_bytes: 100000 MiB\n    source: mine\n    {lines}\n")
    [gpu] = [gpu for gpu in load_catalogue(file) if gpu.name == "Mine"]
    assert known(gpu.capacity_bytes) // MIB == capacity_mib
    assert gpu.capacity_rule == rule


def test_more_usable_memory_than_nvml_reports_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(
        "gpus:\n  - {name: Mine, memory_bytes: 1 GiB, usable_memory_bytes: 2 GiB, source: mine}\n", encoding="utf-8"
    )
    with one_line("usable_memory_bytes: 2147483648 exceeds memory_bytes, 1073741824"):
        load_catalogue(file)


def test_only_tables_of_nvmls_total_read_it_and_all_that_must_fit_reads_the_capacity() -> None:
    readers = {
        str(file.relative_to(ROOT))
        for file in python_files("zerobench")
        if re.search(r"(?<!stage\.)\b(gpu|known|entry|catalogued)\.memory_bytes\b", file.read_text(encoding="utf-8"))
    }
    assert readers == {
        "zerobench/app/commands/models.py",
        "zerobench/emulator/gpu.py",
        "zerobench/app/search/changes.py",
        "zerobench/config/hardware/hardware.py",
    }


@pytest.mark.parametrize("name", ["h200", "H200 SXM", "NVIDIA H200", "h200-sxm"])
def test_a_gpu_has_one_short_name_however_it_is_written(name: str):
    assert known_gpu(name).name == "H200 SXM"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h201", "did you mean 'H200 SXM'"),
        ("rtx-4091", "did you mean 'RTX 4090'"),
        ("a100-90gb", "did you mean 'A100 SXM 80GB' or 'A100 SXM 40GB'"),
        ("abacus", "choices: B300 SXM, "),
        (7, "gpu: 7 is not in the hardware catalogue; choices: "),
        (None, "gpu: null is not in the hardware catalogue"),
        (True, "gpu: true is not in the hardware catalogue"),
    ],
)
def test_an_unknown_gpu_is_one_line_with_the_nearest_names(name: object, hint: str):
    with one_line(hint):
        known_gpu(name)


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("h100-80gb", "H100 SXM"),
        ("v100 32GB", "V100 SXM2 32GB"),
        ("h200-141gb", "H200 SXM"),
        ("4090", "RTX 4090"),
        ("h100-40gb", None),
        ("h100-0gb", None),
        ("80gb", None),
        ("h100-80gb-80gb", None),
        ("H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)
def test_a_size_behind_a_name_is_the_gpus_own_or_the_name_is_unknown(name: str, means: str | None):
    if means is None:
        with pytest.raises(UserError, match="not in the hardware catalogue"):
            known_gpu(name)
    else:
        assert known_gpu(name).name == means


def test_the_option_and_its_other_words_are_in_the_line():
    with pytest.raises(UserError, match=r"^--gpu: 'x' .*; choices: auto, .* all \d+: zerobench models --gpus$"):
        known_gpu("x", "--gpu", also=("auto",))


def test_a_gpu_of_the_users_own_catalogue_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own.yaml").write_text("gpus: [{name: Abacus 9000, source: mine}]")
    monkeypatch.setenv(CATALOGUE_VARIABLE, str(tmp_path / "own.yaml"))
    assert known_gpu("abacus-9000").name == "Abacus 9000"


@settings(max_examples=100, deadline=None)
@given(name=st.text() | st.integers() | st.floats() | st.lists(st.text(), max_size=3))
def test_anything_is_a_gpu_or_one_printable_line(name: object):
    with at_most_one_line():
        known_gpu(name)
