"""Which torch the user has, and where what was made for it lies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.environments import Environment
from zerobench.common.errors import UserError
from zerobench.config.hardware.toolchain import version_texts
from zerobench.emulator.build import sources_digest
from zerobench.emulator.downloads import requirements_digest
from zerobench.emulator.outdated import PREFIX


@dataclass(frozen=True)
class Torch:
    """An installation of torch, by what its files say; it is not imported."""

    folder: Path
    """The package's."""
    release: str
    """Its version without what the build adds (`2.13.0` of `2.13.0+cpu`)."""
    version: str
    cuda: str | None
    """`13.0` for a CUDA build."""
    hip: str | None

    @property
    def lib(self) -> Path:
        return self.folder / "lib"


def torch_in(folder: Path) -> Torch | None:
    """The torch that lies in a `site-packages`; None: there is none."""
    texts = version_texts(folder / "torch")
    if texts is None:
        return None
    version = texts.get("__version__", "")
    return Torch(folder / "torch", version.split("+")[0], version, texts.get("cuda"), texts.get("hip"))


def users_torch(made: Path, path: Sequence[str] | None = None) -> Torch:
    """The torch that this interpreter imports when nothing lies over it: `made` is the folder of what we lay over it.

    Raises UserError: there is none.
    """
    folders = [Path(entry) for entry in (sys.path if path is None else path) if entry]
    torches = (torch_in(folder) for folder in folders if not folder.is_relative_to(made))
    torch = next((path for path in torches if path is not None), None)
    if torch is None:
        raise UserError(f"emulator: no torch is installed for {sys.executable}")
    return torch


@dataclass(frozen=True)
class Places:
    """Where the emulator of one torch release lies, of one state of what setup downloads for it.

    Nothing in it changes once setup has finished it, but for stand-ins that are added: programs may run on it.
    """

    folder: Path

    @property
    def build(self) -> Environment:
        """The folder as an environment that setup makes."""
        return Environment("emulator", self.folder)

    @property
    def overlay(self) -> Path:
        """Torch's CUDA build and its Triton, laid over the user's packages; empty where theirs is such a build."""
        return self.folder / "overlay"

    @property
    def headers(self) -> Path:
        """Where the wheels with CUDA's headers were unpacked."""
        return self.folder / "headers"

    @property
    def include(self) -> Path:
        """CUDA's headers. Raises UserError: they are not there."""
        paths = sorted(self.headers.glob("**/cuda_runtime_api.h"))
        if not paths:
            raise UserError(f"emulator: CUDA's headers are not in {self.headers}; run: zerobench setup emulator")
        return paths[0].parent

    @property
    def stand_ins(self) -> Path:
        """The built libraries, of the C as it is now."""
        return self.folder / f"{PREFIX}{sources_digest()}"


def places(made: Environment, torch: Torch) -> Places:
    """Where the emulator for the user's `torch` lies, of this Python: wheels are of one."""
    return Places(made.path / f"{kind_of(torch)}-{requirements_digest(torch.release, torch.cuda)}")


def kind_of(torch: Torch) -> str:
    """Begins the names of all emulators for such a `torch`, of whichever downloads."""
    build = f"cuda{torch.cuda}" if torch.cuda else "overlay"
    return f"torch-{torch.release}-py{sys.version_info[0]}{sys.version_info[1]}-{build}"


def is_made(where: Places, torch: Torch) -> bool:
    """Whether setup has finished it; stand-ins of other sources are built where they are missing."""
    over = torch if torch.cuda else torch_in(where.overlay)
    headers = any(where.headers.glob("**/cuda_runtime_api.h"))
    return where.build.made.is_file() and headers and bool(over and over.cuda)
