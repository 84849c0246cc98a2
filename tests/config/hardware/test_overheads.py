"""CUDA context, NCCL and workspaces: the user's calibration first, then published figures, each with its source."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.imports import ROOT
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import load_catalogue
from zerobench.config.hardware.overheads import (
    CALIBRATION_VARIABLE,
    Overhead,
    StepConstants,
    load_calibration,
    overhead_of,
    published,
    workspace_of,
)

MIB = 2**20


@pytest.fixture(autouse=True, scope="module")
def _no_calibration_of_the_users_own() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(CALIBRATION_VARIABLE, raising=False)
        yield


def spread(median: int) -> dict[str, int]:
    return {"median": median, "min": median - 1, "max": median + 1}


def calibration_file(folder: Path, *gpus: dict[str, Any]) -> Path:
    """A calibration of worlds of 1 and 8 ranks on H200, or of `gpus`."""
    eight = {"context_bytes": spread(530 * MIB), "collectives_bytes": spread(900 * MIB)}
    one = {"context_bytes": spread(520 * MIB), "collectives_bytes": spread(4 * MIB)}
    entries = list(gpus) or [
        {"gpu": "NVIDIA H200", "world_size": 1, "num_ranks": 3, **one, "rest_of_process_bytes": spread(3000 * MIB)},
        {"gpu": "NVIDIA H200", "world_size": 8, "num_ranks": 16, **eight},
    ]
    file = folder / "calibration.yaml"
    file.write_text(yaml.safe_dump({"calibration_version": 1, "run_id": "one", "gpus": entries}), encoding="utf-8")
    return file


def test_every_published_figure_names_gpus_of_the_catalogue_and_a_source() -> None:
    known = {gpu.name for gpu in load_catalogue()}
    figures = published()
    entries = [*figures.contexts, *figures.collectives, *figures.workspaces]
    assert len(entries) >= 8
    for entry in entries:
        assert set(entry.gpus or ()) <= known
        kept = ROOT / re.split("[:,]", entry.source)[0]
        assert entry.status == "recalled" or "github.com/" in entry.source or kept.is_dir()


@pytest.mark.parametrize("gpu", [gpu.name for gpu in load_catalogue()] + ["a GPU that nobody knows", ""])
@pytest.mark.parametrize("world_size", [1, 2, 3, 64, 10**6])
def test_every_gpu_and_world_size_has_figures_of_a_plausible_size(gpu: str, world_size: int) -> None:
    overhead = overhead_of(gpu, world_size)
    assert 200 * MIB <= overhead.context_bytes <= 1000 * MIB
    assert 500 * MIB <= overhead.collectives_bytes <= 2000 * MIB
    assert 300 * MIB <= overhead.another_bytes <= overhead.collectives_bytes
    assert overhead.communicator_bytes(0) == 0
    assert overhead.communicator_bytes(3) == overhead.collectives_bytes + 2 * overhead.another_bytes
    assert overhead.rest_of_process_bytes is None
    assert workspace_of(gpu).workspace_bytes >= 8_519_680


def test_a_figure_says_whether_anybody_measured_it_on_this_gpu() -> None:
    assert "CUDA context 481.28 MiB, measured (github.com/stas00" in overhead_of("NVIDIA A100-SXM4-80GB", 8).source
    assert "CUDA context 758.00 MiB, from published figures (" in overhead_of("NVIDIA H200", 8).source
    assert "CUDA context 481.28 MiB, from published figures (" in overhead_of("L4", 8).source


def test_more_ranks_never_take_less_of_the_published_figures() -> None:
    sizes = [overhead_of("H200", world_size).collectives_bytes for world_size in (1, 2, 3, 4, 8, 1024)]
    assert sizes == sorted(sizes)
    assert sizes[:3] == [558 * MIB, 558 * MIB, 688_000_000]


@pytest.mark.parametrize(
    ("gpu", "mib"), [("NVIDIA H200", 32), ("B200 SXM", 32), ("A100 SXM 80GB", 8.125), ("T4", 8.125)]
)
def test_the_matrix_librarys_workspace_is_larger_since_hopper(gpu: str, mib: float) -> None:
    """:4096:2:16:8 is twice 4096 KiB and eight times 16 KiB."""
    assert workspace_of(gpu).workspace_bytes == mib * MIB


@pytest.mark.parametrize(
    ("world_size", "context_mib", "collectives_bytes", "said"),
    [
        (1, 520, 4 * MIB, "on 3 ranks, world size 1"),
        (8, 530, 900 * MIB, "on 16 ranks, world size 8"),
        (64, 530, 900 * MIB, "on 16 ranks, world size 8"),
        (2, 520, 900 * MIB, "on 16 ranks, world size 8"),
    ],
)
@pytest.mark.parametrize("gpu", ["NVIDIA H200", "H200 SXM", "h200"])
def test_a_calibration_goes_before_published_figures_with_the_nearest_world_size(
    tmp_path: Path, gpu: str, world_size: int, context_mib: int, collectives_bytes: int, said: str
) -> None:
    found = overhead_of(gpu, world_size, calibration_file(tmp_path))
    assert (found.context_bytes, found.collectives_bytes) == (context_mib * MIB, collectives_bytes)
    assert found.rest_of_process_bytes == 3000 * MIB
    assert said in found.source
    assert str(tmp_path) in found.source


def test_one_rank_is_no_measure_of_what_several_exchange_nor_the_reverse(tmp_path: Path) -> None:
    one = {"gpu": "NVIDIA H200", "world_size": 1, "num_ranks": 1, "collectives_bytes": spread(4 * MIB)}
    found = overhead_of("H200", 8, calibration_file(tmp_path, one))
    assert found == overhead_of("H200", 8)
    eight = {**one, "world_size": 8, "context_bytes": spread(530 * MIB)}
    found = overhead_of("H200", 1, calibration_file(tmp_path, eight))
    assert (found.context_bytes, found.collectives_bytes) == (530 * MIB, 558 * MIB)


def test_of_two_world_sizes_as_near_the_larger_is_taken(tmp_path: Path) -> None:
    worlds = [
        {"gpu": "NVIDIA H200", "world_size": size, "num_ranks": size, "context_bytes": spread(size * 100 * MIB)}
        for size in (4, 8)
    ]
    assert overhead_of("H200", 6, calibration_file(tmp_path, *worlds)).context_bytes == 800 * MIB


def test_a_calibration_of_another_gpu_changes_nothing(tmp_path: Path) -> None:
    assert overhead_of("NVIDIA H100 PCIe", 8, calibration_file(tmp_path)) == overhead_of("NVIDIA H100 PCIe", 8)


def test_a_gpu_outside_the_catalogue_is_calibrated_by_its_own_name(tmp_path: Path) -> None:
    own = {"gpu": "NVIDIA X1", "world_size": 2, "num_ranks": 2, "context_bytes": spread(700 * MIB)}
    file = calibration_file(tmp_path, own)
    assert overhead_of("nvidia x1", 2, file).context_bytes == 700 * MIB
    assert overhead_of("NVIDIA X2", 2, file).context_bytes != 700 * MIB


def test_the_environment_names_a_calibration_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CALIBRATION_VARIABLE, str(calibration_file(tmp_path)))
    assert overhead_of("H200", 8).context_bytes == 530 * MIB


@pytest.mark.parametrize("world_size", [0, -1])
def test_a_world_without_ranks_is_refused(world_size: int) -> None:
    with pytest.raises(UserError, match=f"world_size: {world_size} is not a number of ranks"):
        overhead_of("H200", world_size)


ENTRY = "gpu: X, world_size: 1, num_ranks: 1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not a calibration; write one with: zerobench calibrate RUN"),
        ("[1]", "not a calibration"),
        ("gpus: [", "invalid YAML"),
        ("{run_id: a, gpus: []}", "gpus: .*at least 1"),
        (f"{{gpus: [{{{ENTRY}}}]}}", "run_id: Field required"),
        (f"{{run_id: a, calibration_version: 2, gpus: [{{{ENTRY}}}]}}", "calibration_version: .*got 2"),
        ("{run_id: a, gpus: [{gpu: X, world_size: 0, num_ranks: 1}]}", "world_size: .*greater than or equal to 1"),
        (f"{{run_id: a, gpus: [{{{ENTRY}, context: 3}}]}}", "gpus.0.context: unknown field"),
        (f"{{run_id: a, gpus: [{{{ENTRY}, context_bytes: 5}}]}}", "context_bytes"),
        ("{run_id: a, run_id: b, gpus: []}", "is given twice"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused_in_one_line_with_its_path(
    tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(content, encoding="utf-8")
    with one_line(str(file), match=said):
        overhead_of("H200", 8, file)


def test_a_calibration_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_calibration(tmp_path / "none.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        load_calibration(tmp_path / "bytes")


@settings(deadline=None)
@given(st.text(), st.integers(1, 10**9))
def test_any_name_of_a_gpu_gets_an_answer(name: str, world_size: int) -> None:
    assert isinstance(overhead_of(name, world_size), Overhead)


def test_what_a_machine_of_ones_own_takes_is_said_of_offload_where_a_trial_told_of_it() -> None:
    usual = StepConstants(slower=1.0, launch_s=21e-6, python_slower=1.754, step_s=0.003)
    assert usual.host_words == "a launch 21 us, Python 1.8 times as long"
    assert StepConstants(slower=0.5, launch_s=1e-6, python_slower=0.5, step_s=0.0).host_words.endswith(
        "Python 0.5 times as long"
    )
    offloaded = usual.model_copy(update={"copies_slower": 1.291, "host_update_slower": 1.22})
    assert (
        offloaded.host_words == usual.host_words + ", copies to and from the host 1.29 times, updates there 1.22 times"
    )
