"""Environments of their own for strategies that cannot share one with the suite: where they lie, whether they are made.

Horovod is built from source against one torch, and TensorFlow pins its own NumPy and protobuf: each has a virtual
environment that `zerobench setup NAME` makes (launch/setup/environment_setup.py). Ranks run there by its Python, the
same zerobench that started them: it is reached through a folder that holds a link to this package and nothing beside
it, because a whole `site-packages` on the path would lend the ranks packages that are not theirs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "ZEROBENCH_ENVIRONMENTS"
"""Environment variable with the folder that holds the environments, where it is not the default one."""

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "horovod": ("horovod", "torch", "transformers", "numpy"),
    "tensorflow": ("tensorflow-cpu", "keras", "numpy"),
}
"""The environments that can be made, with the distributions whose versions bear on the figures."""


@dataclass(frozen=True)
class Environment:
    """One environment, made or not."""

    name: str
    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def made(self) -> Path:
        """What setup writes when all is done and checked; there only then."""
        return self.path / "made.json"

    @property
    def is_made(self) -> bool:
        """Whether ranks can run in it."""
        return self.made.is_file() and self.python.exists()

    def code(self) -> Path:
        """A folder for PYTHONPATH that holds this zerobench alone, made where it is not there.

        Raises OSError: the environment cannot be written.
        """
        package = Path(__file__).resolve().parents[1]
        folder = self.path / "code" / hashlib.sha256(os.fsencode(package)).hexdigest()[:12]
        link = folder / package.name
        if not link.is_symlink():
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{package.name}.{os.getpid()}.{os.urandom(4).hex()}"
            temporary.symlink_to(package, target_is_directory=True)
            temporary.replace(link)  # two trials may begin at the same time
        return folder


def environments_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where environments lie: ZEROBENCH_ENVIRONMENTS, or the user's data folder (XDG Base Directory Specification)."""
    if named := environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    data = environ.get("XDG_DATA_HOME", "")
    return (Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share") / "zerobench" / "environments"


def environment(name: str, folder: Path | None = None) -> Environment:
    """The environment called `name` in `folder`, by default `environments_folder()`."""
    return Environment(name, (folder or environments_folder()) / name)


def missing_environments() -> tuple[str, ...]:
    """Those that are not made here."""
    return tuple(name for name in PACKAGES if not environment(name).is_made)


def running_in(name: str) -> dict[str, str | None]:
    """What this process, a rank in the environment `name`, runs with: its Python, and versions as installed."""
    versions = {package: version_of(package) for package in PACKAGES[name]}
    return {"name": name, "python": platform.python_version(), "executable": sys.executable, **versions}


def version_of(package: str) -> str | None:
    """As it is installed here; None for what is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
