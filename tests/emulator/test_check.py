"""No process of the emulated GPU may meet a driver that the machine has: that is made sure of before anything runs."""

import subprocess
from pathlib import Path

import pytest

from zerobench.emulator.compiler import C
from zerobench.emulator.emulator import Emulator
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.errors import UserError
from zerobench.spec.gpu_names import known_gpu

H200 = EmulatedGpu.of(known_gpu("H200"))


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
