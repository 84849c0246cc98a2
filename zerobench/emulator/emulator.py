"""The emulated GPU's interface: availability, and the environment of processes that run on it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.environment_locks import keep_in_use
from zerobench.common.environments import Environment, environment
from zerobench.common.errors import UserError
from zerobench.common.training_python import training_python
from zerobench.common.training_variables import prepend_path
from zerobench.emulator.build import CORE, VALUES, VALUES_VARIABLE, build
from zerobench.emulator.downloads import UNVERIFIED, listed_torches
from zerobench.emulator.gpu import VARIABLE, EmulatedGpu
from zerobench.emulator.outdated import mark_found, remove_outdated
from zerobench.emulator.places import Places, Torch, is_made, places, torch_in, users_torch

ENVIRONMENT = "emulator"
ACCOUNT_VARIABLE = "ZEROBENCH_EMULATED_ACCOUNT"
"""Environment variable with the file in which the processes of one emulated node count their memory."""
MAX_GPUS = 16
"""Most GPUs of one node (ZB_MAX_DEVICES of c/gpu.h)."""

_CUDA_MAJOR = "13"
_SETUP = "zerobench setup emulator"
_REMEDY = f"run: {_SETUP}"
_ROOTS = 1_000_000

_ASK = """
import ctypes
driver, name = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(256)
assert driver.cuInit(0) == 0 and driver.cuDeviceGetName(name, 256, 0) == 0
print(name.value.decode())
"""
"""Prints the name of the first device of the driver that a process loads."""


@dataclass(frozen=True)
class Emulator:
    """An installed emulator for the user's torch."""

    python: Path
    """Interpreter of ranks."""
    stand_ins: Path
    """Folder of the built libraries."""
    torch: str
    """Version of the CUDA build."""
    overlay: Path | None
    """Folder that precedes the user's own packages on the path; None if their torch is a CUDA build."""

    def variables(
        self,
        gpu: EmulatedGpu,
        num_gpus: int = 1,
        account: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> dict[str, str]:
        """Variables to add to `environ` for a process on a node with `num_gpus` of `gpu`.

        `account`: file that all processes of the node share; without one each counts by itself. Raises UserError: more
        GPUs than a node can have, or one that this torch has no kernels for.
        """
        if not 1 <= num_gpus <= MAX_GPUS:
            raise UserError(f"--gpus-per-node: {num_gpus}; choices: 1 to {MAX_GPUS} in an emulated node")
        if gpu.compute_capability < (7, 5):
            capability = "{}.{}".format(*gpu.compute_capability)
            raise UserError(
                f"gpu: {gpu.name}: CUDA 13 and torch {self.torch} have no code for compute capability {capability}"
            )
        added = {
            VARIABLE: gpu.variable(num_gpus),
            ACCOUNT_VARIABLE: "" if account is None else str(account.absolute()),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(num_gpus))),
            "LD_LIBRARY_PATH": prepend_path(str(self.stand_ins), environ.get("LD_LIBRARY_PATH")),
            "DS_ACCELERATOR": "cuda",
            # ProcessGroupNCCL waits for an id of each 128 ranks, which ranks that are not there never store.
            "TORCH_NCCL_RANKS_PER_ROOT": str(_ROOTS),
            "TRITON_LIBCUDA_PATH": str(self.stand_ins),
            VALUES_VARIABLE: str(self.stand_ins / VALUES),
        }
        if self.overlay is not None:
            added["PYTHONPATH"] = prepend_path(str(self.overlay), environ.get("PYTHONPATH"))
        else:
            # torch finds NVIDIA's libraries by the path that it was linked with, which goes before LD_LIBRARY_PATH:
            # only what is loaded already goes before that.
            libraries = sorted(str(path) for path in self.stand_ins.glob("lib*.so*"))
            added["LD_PRELOAD"] = prepend_path(":".join(libraries), environ.get("LD_PRELOAD"))
        return added

    def check(self, variables: Mapping[str, str], gpu: EmulatedGpu) -> None:
        """Check, without torch, that a process with `variables` loads the stand-ins and no driver of the machine's.

        Raises UserError: another device responds, or none.
        """
        command = [str(self.python), "-I", "-c", _ASK]
        environ = {**os.environ, **variables}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or done.stdout.strip() != gpu.name:
            answer = repr(done.stdout.strip()) if not done.returncode else "none"
            raise UserError(
                f"emulator: {gpu.name!r} expected, not {answer}: another CUDA driver precedes {self.stand_ins}"
            )


def find_emulator(made: Environment | None = None) -> Emulator:
    """Find the emulator for the torch that ranks import; its stand-ins are rebuilt if our C has changed.

    `made`: its environment, by default that of `zerobench setup emulator`. Raises UserError, one line: this machine
    cannot have one, it is not set up, or the stand-ins cannot be built.
    """
    torch = usable_torch((made := made or environment(ENVIRONMENT)).path)
    where = places(made, torch)
    if is_made(where, torch):
        keep_in_use(where.folder)
    if not is_made(where, torch):  # or no more: a setup may have begun to repair it before it was kept
        raise UserError(f"emulator: not set up for torch {torch.version}; {_remedy(torch)}")
    return emulator_in(where, torch)


def emulator_in(where: Places, torch: Torch) -> Emulator:
    """Open the emulator in `where` for the user's `torch`; missing stand-ins are built.

    Raises UserError: its torch is no build for CUDA 13, or the stand-ins cannot be built.
    """
    cuda_torch = torch if torch.cuda else check_cuda_build(where.overlay)
    try:
        build_missing(where, cuda_torch.lib)
    except OSError as error:
        raise UserError(f"emulator: {error.filename or where.folder}: {error.strerror or error}") from None
    return Emulator(
        training_python().python, where.stand_ins, cuda_torch.version, None if torch.cuda else where.overlay
    )


def build_missing(where: Places, torch_lib: Path) -> None:
    """Build the stand-ins for the torch with libraries in `torch_lib` if they do not exist, and then remove outdated
    ones.

    Raises UserError or OSError: they cannot be built.
    """
    stand_ins = where.stand_ins
    if (stand_ins / CORE).is_file():
        mark_found(stand_ins)
        return
    build(torch_lib, where.include, stand_ins)
    remove_outdated(stand_ins)


def usable_torch(made: Path) -> Torch:
    """Return the torch that ranks import, if an emulator can be made for it.

    Raises UserError: not Linux on x86-64, no torch, or a build for ROCm or another CUDA.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        system = f"{platform.system()} {platform.machine()}"
        raise UserError(f"emulator: {system}: the emulated GPU needs Linux on x86-64")
    torch = users_torch(made)
    if torch.hip:
        raise UserError(f"emulator: torch {torch.version} is a build for ROCm; the emulated GPU is CUDA's")
    if torch.cuda and torch.cuda.split(".")[0] != _CUDA_MAJOR:
        raise UserError(
            f"emulator: torch {torch.version} is a build for CUDA {torch.cuda}; supported: "
            f"{', '.join(listed_torches())}, built for CUDA {_CUDA_MAJOR} or for the CPU"
        )
    return torch


def _remedy(torch: Torch) -> str:
    """Advice on getting an emulator for `torch`, or the releases that have one."""
    if torch.cuda or torch.release in listed_torches():
        return f"{_REMEDY}{training_python().suffix}"
    return (
        f"supported: {', '.join(listed_torches())} (others unchecked: {_SETUP}{training_python().suffix} {UNVERIFIED})"
    )


def check_cuda_build(overlay: Path) -> Torch:
    """The torch installed in `overlay`. Raises UserError: it is no build for CUDA 13."""
    torch = torch_in(overlay)
    if torch is None:
        raise UserError(f"emulator: no torch in {overlay}; {_REMEDY}")
    if not torch.cuda or torch.cuda.split(".")[0] != _CUDA_MAJOR:
        kind = f"a build for CUDA {torch.cuda}" if torch.cuda else "a build without CUDA"
        raise UserError(f"emulator: the index's torch {torch.version} is {kind}; needs one for CUDA {_CUDA_MAJOR}")
    return torch
