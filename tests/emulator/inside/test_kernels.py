"""Offloaded states of any size are played on the emulated GPU, without the memory, compilers or disk they need."""

from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.emulator.build import VALUES_VARIABLE
from zerobench.emulator.compiler import Compiler
from zerobench.emulator.inside import deepcompile

PROGRAM = Path(__file__).with_name("offload_program.py")
PARTS = 8


@pytest.fixture(scope="module")
def offloaded(emulated):
    return emulated(PROGRAM.read_text(), "80", "cpu", "fp16", "/unused")


@pytest.fixture(scope="module")
def swapped(emulated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("no disk") / "nvme"
    return folder, emulated(PROGRAM.read_text(), "2", "nvme", "bf16", str(folder))


def test_a_70b_model_of_8_gpus_with_all_states_on_the_host_takes_less_than_a_gigabyte(offloaded):
    assert 68e9 < offloaded["parameters"] < 71e9
    assert offloaded["masters"] == pytest.approx(offloaded["parameters"] / PARTS, rel=1e-3)
    assert offloaded["master_device"] == ["cpu"]
    assert offloaded["resident_peak"] < 1e9


def test_no_step_is_skipped_and_no_loss_scale_is_lowered(offloaded):
    assert offloaded["skipped"] == 0
    assert offloaded["scales"] == [65536.0, 65536.0]
    assert offloaded["norm"] == 0.0


def test_swapped_states_are_counted_and_leave_nothing_on_the_disk(swapped):
    folder, seen = swapped
    own = seen["parameters"] / PARTS
    assert seen["files"]["optimizer"] == pytest.approx(16 * own, rel=0.01)  # masters, moments and gradients in fp32
    assert 0 < seen["files"]["parameters"] <= 2 * own * 1.01
    assert seen["traffic"][1] > 2 * seen["files"]["optimizer"]  # at start-up and in each step
    assert not folder.exists()


def test_deepcompile_is_loaded_on_the_emulated_gpu_alone(monkeypatch):
    monkeypatch.delenv(VALUES_VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match="not started for an emulated GPU"):
        deepcompile.load()


@pytest.mark.parametrize("refused", [[], [["joined.cpp"]]])
def test_deepcompile_is_compiled_as_one_file_and_file_by_file_where_that_fails(monkeypatch, tmp_path, refused):
    asked = []

    def make(_compiler, _library, files, _options):
        asked.append([file.name for file in files])
        if asked == refused:
            raise UserError("redefinition")

    monkeypatch.setattr(Compiler, "make_library", make)
    deepcompile._build(tmp_path / "made.so", [Path("init.cpp"), Path("z1.cpp")], [])
    assert asked == [["joined.cpp"], *([["init.cpp", "z1.cpp"]] if refused else [])]
