"""Whether an emulator is there for the user's torch, what a process gets to run on it, one line where not."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.environments import Environment
from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import Gpu, known_gpu
from zerobench.config.hardware.overheads import overhead_of
from zerobench.emulator import downloads
from zerobench.emulator import emulator as module
from zerobench.emulator import places as places_module
from zerobench.emulator.emulator import Emulator, check_cuda_build, find_emulator, usable_torch
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.emulator.places import Torch, places, users_torch
from zerobench.launch.setup import emulator_environment
from zerobench.launch.setup.emulator_environment import emulator_steps, triton_of
from zerobench.launch.setup.environment_setup import set_up
from zerobench.launch.setup.setup_steps import Step

H200 = EmulatedGpu.build(known_gpu("H200"))


def installed(
    folder: Path, version: str | None = "2.13.0+cpu", cuda: str | None = None, hip: str | None = None
) -> Path:
    """A site-packages with a torch whose files say this."""
    (folder / "torch").mkdir(parents=True)
    said = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = {hip!r}\n"
    (folder / "torch" / "version.py").write_text(said)
    return folder


@pytest.fixture
def users(tmp_path, monkeypatch):
    """Gives this interpreter a torch of these versions and no other."""

    def install(**said: str | None) -> Environment:
        monkeypatch.setattr(sys, "path", [str(installed(tmp_path / "site", **said))])
        return Environment("emulator", tmp_path / "emulator")

    return install


def test_the_facts_of_a_gpu_are_the_catalogues_and_its_architectures():
    assert (H200.name, H200.memory_bytes, H200.sm_count) == ("NVIDIA H200", 143156 << 20, 132)
    assert H200.nvml_bytes == 143771 << 20
    assert H200.compute_capability == (9, 0)
    assert (H200.shared_per_sm, H200.shared_per_block) == (228 << 10, 227 << 10)
    assert H200.clock_khz == pytest.approx(1_980_000, rel=0.01)
    overhead = overhead_of("H200", 64)
    assert H200.context_bytes == overhead.context_bytes
    assert H200.nccl_bytes[-1][1:] == (overhead.collectives_bytes, overhead.another_bytes)
    assert H200.nccl_bytes[0] == (1, 558 << 20, 388 << 20)


def test_every_nvidia_gpu_of_the_catalogue_that_has_its_memory_can_be_described():
    from zerobench.config.hardware.hardware import load_catalogue

    for gpu in at_least_one(gpu for gpu in load_catalogue() if gpu.memory_bytes and gpu.name != "MI300X"):
        assert EmulatedGpu.build(gpu).variable(8).count(";") >= 15


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        (
            known_gpu("MI300X"),
            r"^gpu: MI300X: cannot be emulated: .* no compute_capability, which NVIDIA's GPUs have; ",
        ),
        (
            Gpu(name="X", memory_bytes=1, compute_capability="9.0", source="a test"),
            r"^gpu: X: cannot be emulated: the hardware catalogue gives it no sm_count$",
        ),
        (
            Gpu(name="X", memory_bytes=1, sm_count=1, compute_capability="6.1", source="a test"),
            r"^gpu: X: compute_capability 6\.1 is not known; choices: 7\.0, ",
        ),
    ],
)
def test_a_gpu_that_cannot_be_emulated_is_refused_with_what_is_missing(gpu, message):
    with pytest.raises(UserError, match=message):
        EmulatedGpu.build(gpu)


EMULATOR = Emulator(Path("/venv/bin/python"), Path("/made/stand_ins"), "2.13.0+cu130", Path("/made/overlay"))


def test_a_process_finds_the_stand_ins_before_any_library_and_the_overlay_before_any_package():
    added = EMULATOR.variables(H200, 8, Path("/runs/account"), {"LD_LIBRARY_PATH": "/own", "PYTHONPATH": "/mine"})
    assert added["LD_LIBRARY_PATH"] == "/made/stand_ins:/own"
    assert added["PYTHONPATH"] == "/made/overlay:/mine"
    assert added["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert added["TRITON_LIBCUDA_PATH"] == "/made/stand_ins"
    assert added["DS_ACCELERATOR"] == "cuda"
    assert added["ZEROBENCH_EMULATED_ACCOUNT"] == "/runs/account"
    assert "LD_PRELOAD" not in added
    facts = dict(pair.split("=") for pair in added["ZEROBENCH_EMULATED_GPU"].split(";"))
    assert facts["name"] == "NVIDIA H200"
    assert (facts["gpus"], facts["major"], facts["minor"]) == ("8", "9", "0")


def test_where_the_users_torch_is_a_cuda_build_the_stand_ins_are_loaded_before_it(tmp_path):
    for name in ("libcudart.so.13", "libzerobench_gpu.so"):
        (tmp_path / name).touch()
    added = Emulator(Path(sys.executable), tmp_path, "2.13.0+cu130", None).variables(H200, environ={"LD_PRELOAD": "/x"})
    assert added["LD_PRELOAD"] == f"{tmp_path}/libcudart.so.13:{tmp_path}/libzerobench_gpu.so:/x"
    assert "PYTHONPATH" not in added


@pytest.mark.parametrize("count", [0, 17])
def test_a_node_has_one_to_sixteen_gpus(count):
    with pytest.raises(UserError, match=rf"^--gpus-per-node: {count}; choices: 1 to 16 in an emulated node$"):
        EMULATOR.variables(H200, count)


def test_a_gpu_that_cuda_13_has_left_behind_is_refused():
    with pytest.raises(UserError, match=r"CUDA 13 and torch 2\.13\.0\+cu130 have no code for compute capability 7\.0$"):
        EMULATOR.variables(EmulatedGpu.build(known_gpu("V100")))


def test_one_that_is_not_made_says_how_to_make_it(users):
    with pytest.raises(
        UserError, match=r"^emulator: not set up for torch 2\.13\.0\+cpu; run: zerobench setup emulator$"
    ):
        find_emulator(users())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"version": "2.13.0+rocm7", "hip": "7.0"}, r"^emulator: torch 2\.13\.0\+rocm7 is a build for ROCm"),
        ({"version": "2.11.0+cu126", "cuda": "12.6"}, r"^emulator: torch 2\.11\.0\+cu126 is a build for CUDA 12\.6"),
    ],
)
def test_a_torch_for_other_devices_is_refused(users, said, message):
    own = users(**said)
    with pytest.raises(UserError, match=message):
        find_emulator(own)
    with pytest.raises(UserError, match=message):
        set_up("emulator", own.path.parent, print)


def test_other_systems_are_told_what_the_emulated_gpu_needs(users, monkeypatch):
    own = users()
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(UserError, match=r"^emulator: Darwin arm64: the emulated GPU needs Linux on x86-64$"):
        usable_torch(own.path)


def test_an_index_that_gives_a_build_without_cuda_is_found_out(tmp_path):
    installed(tmp_path)
    with pytest.raises(UserError, match=r"^emulator: the index's torch 2\.13\.0\+cpu is a build without CUDA"):
        check_cuda_build(tmp_path)


def test_the_users_torch_is_seen_below_what_was_laid_over_it(tmp_path):
    over = installed(tmp_path / "made" / "overlay", version="2.13.0+cu130", cuda="13.0")
    below = installed(tmp_path / "site")
    assert users_torch(tmp_path / "made", [str(over), str(below)]).version == "2.13.0+cpu"
    with pytest.raises(UserError, match=r"^emulator: no torch is installed for"):
        users_torch(tmp_path / "made", [str(over)])


def recipe(own: Environment, **options: bool) -> Iterator[Step]:
    """The steps that make the emulator for this interpreter's torch."""
    torch = usable_torch(own.path)
    return emulator_steps(places(own, torch), torch, **options)


def lay(step: Step) -> Path:
    """What the step would lay into its folder: torch's CUDA build, which names its Triton; the folder."""
    overlay = Path(step.argv[step.argv.index("--target") + 1])
    installed(overlay, version="2.13.0+cu130", cuda="13.0")
    (overlay / "torch-2.13.0.dist-info").mkdir()
    metadata = "Name: torch\nVersion: 2.13.0\nRequires-Dist: triton==3.7.1; platform_system == 'Linux'\n"
    (overlay / "torch-2.13.0.dist-info" / "METADATA").write_text(metadata)
    return overlay


def test_setup_installs_the_users_release_alone_and_isolated_by_hash(users):
    steps = recipe(users())
    first = next(steps)
    assert first.name == "torch"
    assert known(first.requirements).name == "torch-2.13.0.txt"
    assert {"--isolated", "--no-deps", "--require-hashes"} <= set(first.command)
    assert "--no-compile" not in first.argv  # or each process would compile torch anew where bytecode is not written
    lay(first)
    headers = next(steps)
    assert known(headers.requirements).name == "cuda-13.0.txt"
    assert "--require-hashes" in headers.command
    assert next(steps).name == "stand-ins"


def test_a_release_without_hashes_is_refused_with_those_that_have_some(users):
    with pytest.raises(UserError) as refused:
        next(recipe(users(version="2.13.9+cpu")))
    assert str(refused.value) == (
        "setup emulator: torch 2.13.9: no hashes are listed, so its download cannot be checked; choices: torch 2.11.0, "
        "torch 2.12.0, torch 2.12.1, torch 2.13.0, or --unverified to download it unchecked"
    )


def test_headers_of_a_cuda_without_hashes_are_refused_with_those_that_have_some(users):
    with pytest.raises(UserError, match=r"^setup emulator: CUDA 13\.9: no hashes .*; choices: CUDA 13\.0, "):
        next(recipe(users(version="2.13.0+cu139", cuda="13.9")))


def test_on_request_a_release_without_hashes_is_downloaded_with_the_triton_that_it_names(users, monkeypatch):
    monkeypatch.setattr(emulator_environment, "overlay_requirements", lambda _: None)
    steps = recipe(users(), is_verified=False)
    first = next(steps)
    assert first.command[-1] == "torch==2.13.0"
    overlay = lay(first)
    second = next(steps)
    assert second.command[-1] == "triton==3.7.1"
    assert (first.clears, second.clears) == (overlay, None)
    with pytest.raises(UserError, match="names no release of triton"):
        triton_of(overlay, "2.12.1")


def test_what_hashes_are_listed_for_is_checked_even_where_unchecked_downloads_are_allowed(users):
    assert "--require-hashes" in next(recipe(users(), is_verified=False)).command


def test_each_torch_and_each_state_of_its_downloads_has_a_folder_of_its_own(users, monkeypatch, tmp_path):
    own = Environment("emulator", tmp_path)
    torches = [Torch(tmp_path, release, f"{release}+cpu", None, None) for release in ("2.12.1", "2.13.0")]
    folders = {places(own, torch).folder for torch in torches}
    folders.add(places(own, Torch(tmp_path, "2.13.0", "2.13.0+cu130", "13.0", None)).folder)
    pins = tmp_path / "torch-2.13.0.txt"
    pins.write_text("torch==2.13.0 --hash=sha256:0")
    monkeypatch.setattr(downloads, "overlay_requirements", lambda _: pins)
    folders.add(places(own, torches[1]).folder)
    assert len(folders) == 4


@pytest.mark.parametrize(("there", "missing"), [((), "C"), (("cc",), "C++")])
def test_a_machine_that_lacks_a_compiler_is_told_before_anything_is_downloaded(
    users, monkeypatch, tmp_path, there, missing
):
    (tmp_path / "bin").mkdir()
    for name in there:
        (tmp_path / "bin" / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UserError, match=f"^emulator: no {re.escape(missing)} compiler "):
        next(recipe(users()))


def test_where_the_users_torch_is_a_cuda_build_only_headers_are_downloaded(users):
    steps = recipe(users(version="2.13.0+cu130", cuda="13.0"))
    assert [next(steps).name, next(steps).name] == ["headers", "stand-ins"]


def test_a_folder_that_cannot_be_written_is_one_line(users, monkeypatch):
    own = users()
    monkeypatch.setattr(module, "is_made", lambda _where, _torch: True)
    monkeypatch.setattr(module, "check_cuda_build", lambda overlay: places_module.torch_in(Path(sys.path[0])))
    monkeypatch.setattr(places_module.Places, "include", property(lambda _: Path("/include")))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/made/stand_ins")

    monkeypatch.setattr(module, "build", refuse)
    with pytest.raises(UserError, match=r"^emulator: /made/stand_ins: Permission denied$"):
        find_emulator(own)
