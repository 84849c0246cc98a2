"""No process of the emulated GPU may meet a driver that the machine has: that is made sure of before anything runs."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.tools.known import known
from zerobench.common.environments import environment
from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import known_gpu
from zerobench.emulator.compiler import C
from zerobench.emulator.emulator import ENVIRONMENT, Emulator
from zerobench.emulator.gpu import EmulatedGpu

H200 = EmulatedGpu.build(known_gpu("H200"))


def test_the_stand_ins_answer_with_the_gpus_name(emulator: Emulator) -> None:
    emulator.check(emulator.variables(H200), H200)


def test_a_driver_of_the_machines_that_comes_first_is_found_out(emulator: Emulator, tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(
        "#include <string.h>\nint cuInit(unsigned f){return 0;}\n"
        'int cuDeviceGetName(char *n, int b, int d){strcpy(n, "NVIDIA A10"); return 0;}\n'
    )
    driver = [C.find(), "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "driver.c")]
    subprocess.run([*driver, "-Wl,-soname,libcuda.so.1"], check=True)
    variables = emulator.variables(H200)
    wrong = {**variables, "LD_LIBRARY_PATH": f"{tmp_path}:{variables['LD_LIBRARY_PATH']}"}
    with pytest.raises(UserError, match=r"^emulator: 'NVIDIA H200' expected, not 'NVIDIA A10': another CUDA driver"):
        emulator.check(wrong, H200)
    with pytest.raises(UserError, match=r"^emulator: 'NVIDIA H200' expected, not none"):
        emulator.check({**variables, "CUDA_VISIBLE_DEVICES": ""}, H200)


PRELOADED = """
import json, sys, torch
free, total = torch.cuda.mem_get_info()
print(json.dumps([torch.cuda.get_device_name(0), "libcudart" in open("/proc/self/maps").read()]))
"""


def test_stand_ins_that_are_preloaded_serve_a_torch_that_finds_its_own_libraries(emulator: Emulator, emulated) -> None:
    """As where the user's own torch is a CUDA build, whose path to NVIDIA's libraries goes before LD_LIBRARY_PATH."""
    preloaded = Emulator(emulator.python, emulator.stand_ins, emulator.torch, None).variables(H200)
    name, loaded = emulated(PRELOADED, LD_PRELOAD=preloaded["LD_PRELOAD"], LD_LIBRARY_PATH="/nowhere")
    assert name == "NVIDIA H200"
    assert loaded


RUNNING = """
import sys
print("started", flush=True)
sys.stdin.readline()  # a setup runs, and ends
import torch
torch.cuda.init()
print(torch.cuda.get_device_name(0))
"""


def test_a_program_on_the_emulated_gpu_goes_on_through_a_setup_by_another_interpreter(
    emulator: Emulator, tmp_path: Path
) -> None:
    """As from two virtual environments with the same torch: the second must not lay a new one under the first."""
    environ = {**os.environ, **emulator.variables(H200)}
    pipe = subprocess.PIPE
    with subprocess.Popen([emulator.python, "-c", RUNNING], env=environ, stdin=pipe, stdout=pipe, text=True) as program:
        assert known(program.stdout).readline() == "started\n"
        overlay = known(emulator.overlay)
        before = (overlay / "torch").stat()
        other = tmp_path / "python"
        other.write_text(f'#!/bin/sh\nexec {emulator.python} "$@"\n')
        other.chmod(0o755)
        set_up = (
            "import sys; from pathlib import Path; from zerobench.launch.setup.environment_setup import set_up\n"
            "sys.executable = sys.argv[1]; set_up('emulator', Path(sys.argv[2]), print)"
        )
        folder = environment(ENVIRONMENT).path.parent
        said = subprocess.run(
            [emulator.python, "-c", set_up, other, folder], capture_output=True, text=True, check=True
        ).stdout
        assert "torch: already done" in said
        assert (overlay / "torch").stat().st_ino == before.st_ino
        assert program.communicate("\n")[0] == "NVIDIA H200\n"
    assert program.returncode == 0
