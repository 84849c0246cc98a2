"""The user's torch, and the folders of its emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.environments import Environment
from zerobench.common.errors import UserError
from zerobench.common.training_python import training_python
from zerobench.config.hardware.toolchain import version_texts
from zerobench.emulator.build import sources_digest
from zerobench.emulator.downloads import requirements_digest
from zerobench.emulator.outdated import PREFIX


@dataclass(frozen=True)
class Torch:
    """An installation of torch, as described by its files; it is not imported."""

    folder: Path
    """Folder of the package."""
    release: str
    """Version without the build's suffix (`2.13.0` for `2.13.0+cpu`)."""
    version: str
    cuda: str | None
    """CUDA release of a CUDA build, such as `13.0`."""
    hip: str | None

    @property
    def lib(self) -> Path:
        return self.folder / "lib"


def torch_in(folder: Path) -> Torch | None:
    """Torch in a `site-packages`; None if there is none."""
    texts = version_texts(folder / "torch")
    if texts is None:
        return None
    version = texts.get("__version__", "")
    return Torch(folder / "torch", version.split("+")[0], version, texts.get("cuda"), texts.get("hip"))


def users_torch(made: Path, path: Sequence[str] | None = None) -> Torch:
    """Torch that the ranks' Python imports without an overlay; `made`: folder of our overlays.

    Raises UserError if there is none.
    """
    python = training_python()
    folders = [Path(entry) for entry in (python.search_path if path is None else path) if entry]
    torches = (torch_in(folder) for folder in folders if not folder.is_relative_to(made))
    torch = next((path for path in torches if path is not None), None)
    if torch is None:
        raise UserError(f"emulator: no torch is installed for {python.python}")
    return torch


@dataclass(frozen=True)
class Places:
    """Folders of the emulator for one torch release and one set of downloads.

    Once set up, nothing in it changes except for added stand-ins: programs may run on it.
    """

    folder: Path

    @property
    def build(self) -> Environment:
        """The folder as an environment for setup."""
        return Environment("emulator", self.folder)

    @property
    def overlay(self) -> Path:
        """Torch's CUDA build and its Triton, laid over the user's packages; empty if theirs is such a build."""
        return self.folder / "overlay"

    @property
    def headers(self) -> Path:
        """Unpacked wheels with CUDA's headers."""
        return self.folder / "headers"

    @property
    def include(self) -> Path:
        """Folder of CUDA's headers. Raises UserError if they are missing."""
        paths = sorted(self.headers.glob("**/cuda_runtime_api.h"))
        if not paths:
            raise UserError(f"emulator: CUDA's headers are not in {self.headers}; run: zerobench setup emulator")
        return paths[0].parent

    @property
    def stand_ins(self) -> Path:
        """Libraries built from the present C."""
        return self.folder / f"{PREFIX}{sources_digest()}"


def places(made: Environment, torch: Torch) -> Places:
    """Folders of the emulator for the user's `torch` and the ranks' Python, for which wheels are specific."""
    return Places(made.path / f"{kind_of(torch)}-{requirements_digest(torch.release, torch.cuda)}")


def kind_of(torch: Torch) -> str:
    """Common prefix of the names of all emulators for such a `torch`."""
    build = f"cuda{torch.cuda}" if torch.cuda else "overlay"
    return f"torch-{torch.release}-py{training_python().tag}-{build}"


def is_made(where: Places, torch: Torch) -> bool:
    """Return whether its setup is complete; stand-ins are built if they are missing."""
    cuda_torch = torch if torch.cuda else torch_in(where.overlay)
    headers = any(where.headers.glob("**/cuda_runtime_api.h"))
    return where.build.made.is_file() and headers and bool(cuda_torch and cuda_torch.cuda)
