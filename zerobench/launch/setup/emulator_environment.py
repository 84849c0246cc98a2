"""`zerobench setup emulator`: torch's CUDA build next to the user's own, CUDA's headers, the stand-in libraries.

torch is installed alone, without its 2.5 GB of NVIDIA libraries, which the stand-ins replace. pip runs isolated,
because a user's configuration may name a folder or an index that has a build without CUDA.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.training_python import training_python
from zerobench.config.hardware.hardware import known_gpu
from zerobench.emulator.build import sources_digest
from zerobench.emulator.compiler import find_compilers
from zerobench.emulator.downloads import header_requirements, overlay_requirements, verified
from zerobench.emulator.emulator import build_missing, check_cuda_build, emulator_in
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.emulator.places import Places, Torch
from zerobench.launch.setup.setup_steps import CHECK, Step

CHECKED_GPU = "H200"
"""GPU whose name the last step checks."""

_CHECK = """
import sys, torch
name = torch.cuda.get_device_name(0)
if name != sys.argv[1]:
    raise SystemExit(f"the emulated device is called {name!r}, not {sys.argv[1]!r}: another CUDA driver answers")
torch.ones(4, device="cuda").matmul(torch.ones(4, device="cuda"))
"""


def emulator_steps(where: Places, torch: Torch, *, is_verified: bool = True) -> Iterator[Step]:
    """Yield the steps that make the emulator for the user's `torch`, in order; a step may read results of earlier ones.

    Raises UserError if this machine cannot have one, or if no hashes are listed for a download while `is_verified`.
    """
    find_compilers()  # before anything is downloaded
    over = torch
    if not torch.cuda:
        yield from _overlay_steps(where, torch, is_verified=is_verified)
        over = check_cuda_build(where.overlay)
    yield _headers_step(where, str(over.cuda), is_verified=is_verified)
    yield Step(
        "stand-ins",
        action=lambda: build_missing(where, over.lib),
        reads=f"{over.version} {sources_digest()} {where.folder}",
        disturbs=False,
    )
    gpu = EmulatedGpu.build(known_gpu(CHECKED_GPU))
    added = emulator_in(where, torch).variables(gpu, environ={})
    yield Step(CHECK, [str(training_python().python), "-c", _CHECK, gpu.name], added, disturbs=False)


def _overlay_steps(where: Places, torch: Torch, *, is_verified: bool) -> Iterator[Step]:
    """Yield the steps that install torch's CUDA build and its Triton."""
    file = overlay_requirements(torch.release)
    if is_verified or file is not None:
        yield _install("torch", where.overlay, verified(file, f"torch {torch.release}"), "a download of 720 MB")
        return
    yield _install("torch", where.overlay, [f"torch=={torch.release}"], "a download of 530 MB")
    over = check_cuda_build(where.overlay)
    triton = [triton_of(where.overlay, over.release)]
    yield _install("triton", where.overlay, triton, "a download of 190 MB", beside_others=True)


def _headers_step(where: Places, cuda: str, *, is_verified: bool) -> Step:
    file = header_requirements(cuda)
    if is_verified or file is not None:
        return _install("headers", where.headers, verified(file, f"CUDA {cuda}"), "")
    return _install("headers", where.headers, [f"nvidia-cuda-runtime=={cuda}.*", f"nvidia-cuda-crt=={cuda}.*"], "")


def _install(
    name: str, folder: Path, packages: Path | Sequence[str], takes: str, *, beside_others: bool = False
) -> Step:
    """Lay `packages`, without what they depend on, into `folder`, which is emptied before unless `beside_others`.

    A file of packages has their hashes, and pip installs nothing else. It is our pip, which takes wheels for the Python
    that ranks run under: their environment may have no pip, and nothing is installed into it.
    """
    python = training_python()
    theirs = [] if python.is_own else ["--python", str(python.python)]
    pip = [sys.executable, "-m", "pip", *theirs, "--isolated", "--disable-pip-version-check"]
    alone = ["install", "--no-deps", "--upgrade", "--only-binary", ":all:", "--target", str(folder)]
    clears = None if beside_others else folder
    # A requirements file lists hashes, and pip then installs nothing else.
    if isinstance(packages, Path):
        return Step(name, [*pip, *alone], takes=takes, requirements=packages, clears=clears)
    return Step(name, [*pip, *alone, *packages], takes=takes, clears=clears)


def triton_of(overlay: Path, release: str) -> str:
    """Return the Triton release required by the torch in `overlay`, as pip takes it.

    Raises UserError if its METADATA names none.
    """
    for file in overlay.glob("torch-*.dist-info/METADATA"):
        text = file.read_text(encoding="utf-8")
        match = re.search(r"^Requires-Dist: (triton==[\w.]+)", text, re.MULTILINE)
        if match and f"\nVersion: {release}\n" in f"\n{text}":
            return match[1]
    raise UserError(f"emulator: torch {release} in {overlay} names no release of triton")
