"""What is found out about the machine."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.refusals import one_line
from zerobench.config.derived.machine import DEFAULT_CPU_RANKS, Accelerator, Machine
from zerobench.config.hardware.toolchain import can_build_ops, has_libaio, op_is_built, torch_has_cuda
from zerobench.config.sweep.precision import SLOW
from zerobench.config.sweep.sweep import load_sweep
from zerobench.launch.machine import this_machine
from zerobench.launch.machine import this_machine as module
from zerobench.launch.machine.this_machine import (
    bf16_slowdown,
    cpu_supports_fp16,
    detect_machine,
    measure_arithmetic,
    visible_devices,
)
from zerobench.rank.nvml.nvml import DeviceInfo


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variable is about x86-64's instructions")
def test_a_processor_without_avx512_is_found_slow_at_bf16(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert bf16_slowdown() > SLOW


def test_a_try_without_an_answer_is_told_in_one_line_with_the_choices(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with one_line(match=r"precision: auto: .*choices: --set precision=fp32"):
        bf16_slowdown()


def test_nothing_is_tried_for_a_sweep_that_names_its_precision(monkeypatch):
    monkeypatch.setattr(this_machine, "bf16_slowdown", lambda: pytest.fail("it was tried"))
    machine = Machine(accelerator=Accelerator.CPU, bf16_slowdown=None)
    assert measure_arithmetic(machine, load_sweep("distributed-training-compared")) is machine


GPUS = [DeviceInfo(i, f"GPU-{i}abc", "NVIDIA H100", (80 + i) * 2**30, None) for i in range(4)]


def test_a_machine_without_gpus_has_two_cpu_ranks_by_default():
    machine = detect_machine(devices=[])
    assert (machine.accelerator, machine.num_gpus) == (Accelerator.CPU, 0)
    assert machine.ranks_per_node == DEFAULT_CPU_RANKS == 2
    assert machine.cpu_cores == len(os.sched_getaffinity(0))


def test_gpus_count_only_where_torch_was_built_for_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(module, "torch_has_cuda", lambda: False)
    assert detect_machine(devices=GPUS).accelerator is Accelerator.CPU
    monkeypatch.setattr(module, "torch_has_cuda", lambda: True)
    machine = detect_machine(num_nodes=3, devices=GPUS)
    assert (machine.accelerator, machine.num_gpus, machine.num_nodes) == (Accelerator.CUDA, 4, 3)
    assert machine.device_memory_bytes is not None
    assert round(machine.device_memory_bytes / 2**30, 2) == 79.53  # 79.18 of the 79.65 that the driver counts, of 80
    assert machine.ranks_per_node == 4
    assert machine.supports_fp16
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert detect_machine(devices=GPUS).accelerator is Accelerator.CPU


@pytest.mark.parametrize(
    ("value", "indices"),
    [("0", [0]), ("2,1", [2, 1]), ("", []), ("-1", []), ("0,9,1", [0]), ("1,1", [1]), ("GPU-2,0", [2, 0]), ("no", [])],
)
def test_cuda_visible_devices_leaves_what_cuda_would_see(value: str, indices: list[int]):
    assert visible_devices(GPUS, {"CUDA_VISIBLE_DEVICES": value}) == [GPUS[i] for i in indices]


def test_without_cuda_visible_devices_all_are_seen():
    assert visible_devices(GPUS, {}) == GPUS


@pytest.mark.parametrize(
    ("flags", "taken"), [("sse avx512f", False), ("avx512_fp16 sse", True), ("avx_ne_convert", True), ("", False)]
)
def test_fp16_on_a_cpu_needs_its_instructions(tmp_path: Path, flags: str, taken: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert cpu_supports_fp16(tmp_path / "cpuinfo") is taken
    assert not cpu_supports_fp16(tmp_path / "absent")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not cpu_supports_fp16(tmp_path / "cpuinfo")


def test_fp16_on_an_arm_cpu_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    (tmp_path / "cpuinfo").write_text("flags : avx512_fp16\n")
    assert not cpu_supports_fp16(tmp_path / "cpuinfo")


def test_what_is_found_agrees_with_torch_and_deepspeed_where_they_are_asked():
    ask = (
        "import json, torch\n"
        "from deepspeed.ops.op_builder import AsyncIOBuilder\n"
        "told = [bool(torch.version.cuda), bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())]\n"
        "print(json.dumps([*told, AsyncIOBuilder().is_compatible(verbose=False)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=120)
    cuda, fp16, libaio = json.loads(done.stdout.splitlines()[-1])
    assert torch_has_cuda() is cuda
    assert cpu_supports_fp16() is fp16
    assert (op_is_built("async_io") or has_libaio()) is libaio


def test_looking_at_the_machine_imports_neither_torch_nor_deepspeed():
    ask = (
        "import sys\n"
        "from zerobench.launch.machine.this_machine import detect_machine\n"
        "detect_machine()\n"
        "print(sorted({'torch', 'deepspeed', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_without_a_compiler_nothing_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert not can_build_ops(for_cuda=False)
    assert not has_libaio()


def test_libaio_that_does_not_link_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LDFLAGS", "-Wl,--no-such-option")
    assert not has_libaio()


def test_cuda_parts_need_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert not can_build_ops(for_cuda=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").touch()
    assert can_build_ops(for_cuda=True) is can_build_ops(for_cuda=False)


def test_a_machine_that_is_not_at_hand_can_be_written_down():
    machine = Machine(accelerator="cuda", num_nodes=16, num_gpus=8, gpu_names=("NVIDIA H100",) * 8, cpu_cores=96)
    assert Machine.model_validate_json(machine.model_dump_json()) == machine
