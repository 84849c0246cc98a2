"""What `zerobench setup emulator` does: torch's CUDA build beside the user's own, CUDA's headers, the stand-ins.

torch is installed alone, without the 2.5 GB of NVIDIA's libraries that it names: the stand-ins take their place. pip
runs isolated, because a user's configuration may name a folder or an index that has a build without CUDA.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerobench.emulator.build import sources_digest
from zerobench.emulator.compiler import find_compilers
from zerobench.emulator.emulator import build_missing, check_cuda_build, find_emulator, usable_torch
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.emulator.places import places
from zerobench.environments import Environment
from zerobench.errors import UserError
from zerobench.running.setup_steps import CHECK, Step
from zerobench.spec.gpu_names import known_gpu

CHECKED_GPU = "H200"
"""The GPU that the last step makes sure of."""

_CHECK = """
import sys, torch
name = torch.cuda.get_device_name(0)
if name != sys.argv[1]:
    raise SystemExit(f"the emulated device is called {name!r}, not {sys.argv[1]!r}: another CUDA driver answers")
torch.ones(4, device="cuda").matmul(torch.ones(4, device="cuda"))
"""


def emulator_steps(made: Environment) -> Iterator[Step]:
    """What makes the emulator for this interpreter's torch, in order; a step may read what those before it have made.

    Raises UserError: this machine cannot have one.
    """
    torch = usable_torch(made.path)
    find_compilers()  # before anything is downloaded
    where = places(made, torch)
    cuda = torch.cuda
    if not cuda:
        yield _install("torch", where.overlay, [f"torch=={torch.release}"], "a download of 530 MB")
        over = check_cuda_build(where.overlay)
        cuda = str(over.cuda)
        yield _install("triton", where.overlay, [triton_of(where.overlay, over.release)], "a download of 190 MB")
        torch = over
    wheels = [f"nvidia-cuda-runtime=={cuda}.*", f"nvidia-cuda-crt=={cuda}.*"]
    yield _install("headers", where.headers, wheels, "")
    lib = torch.lib
    yield Step(
        "stand-ins",
        action=lambda: build_missing(where, lib),
        reads=f"{torch.version} {sources_digest()} {where.folder}",
    )
    gpu = EmulatedGpu.of(known_gpu(CHECKED_GPU))
    added = find_emulator(made).variables(gpu, environ={})
    yield Step(CHECK, [sys.executable, "-c", _CHECK, gpu.name], added)


def _install(name: str, folder: Path, packages: Sequence[str], takes: str) -> Step:
    """Lay `packages`, without what they depend on, into `folder`."""
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
    alone = ["install", "--no-deps", "--upgrade", "--only-binary", ":all:", "--target", str(folder)]
    return Step(name, [*pip, *alone, *packages], takes=takes)


def triton_of(overlay: Path, release: str) -> str:
    """The release of Triton that the torch in `overlay` names, as pip takes it.

    Raises UserError: its METADATA names none.
    """
    for file in overlay.glob("torch-*.dist-info/METADATA"):
        text = file.read_text(encoding="utf-8")
        match = re.search(r"^Requires-Dist: (triton==[\w.]+)", text, re.MULTILINE)
        if match and f"\nVersion: {release}\n" in f"\n{text}":
            return match[1]
    raise UserError(f"emulator: torch {release} in {overlay} names no release of triton")
