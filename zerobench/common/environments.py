"""Separate environments of strategies that cannot share the suite's: places and state.

Horovod is built from source against one torch, and TensorFlow pins its own NumPy and protobuf: each has a virtual
environment that `zerobench setup NAME` creates (launch/setup/environment_setup.py). Ranks run with its Python and the
same zerobench that started them: the path has a folder with only a link to this package, because a whole
`site-packages` would expose packages of the suite to the ranks.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.training_python import training_python

VARIABLE = "ZEROBENCH_ENVIRONMENTS"
"""Environment variable with the parent folder of environments, if it is not the default."""

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "horovod": ("horovod", "torch", "transformers", "numpy"),
    "tensorflow": ("tensorflow-cpu", "keras", "numpy"),
}
"""Environments that can be created, with the distributions whose versions affect the figures."""


@dataclass(frozen=True)
class Environment:
    """One environment, created or not."""

    name: str
    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def made(self) -> Path:
        """Written by setup once everything is done and checked."""
        return self.path / "made.json"

    @property
    def is_made(self) -> bool:
        """Return whether ranks can run in it."""
        return self.made.is_file() and self.python.exists()

    def code(self) -> Path:
        """Folder for PYTHONPATH with only this zerobench, created if needed.

        Raises OSError: the environment cannot be written.
        """
        return linked_package(self.path / "code")


def linked_package(folder: Path) -> Path:
    """Make a folder below `folder` for PYTHONPATH that holds a link to this zerobench alone, and return it.

    Raises OSError: it cannot be written.
    """
    package = Path(__file__).resolve().parents[1]
    place = folder / hashlib.sha256(os.fsencode(package)).hexdigest()[:12]
    link = place / package.name
    if not link.is_symlink():
        place.mkdir(parents=True, exist_ok=True)
        temporary = place / f".{package.name}.{os.getpid()}.{os.urandom(4).hex()}"
        temporary.symlink_to(package, target_is_directory=True)
        temporary.replace(link)  # two trials may begin at the same time
    return place


def environments_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Parent folder of environments: ZEROBENCH_ENVIRONMENTS, or the user's data folder (XDG Base Directory
    Specification).
    """
    if named := environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    data = environ.get("XDG_DATA_HOME", "")
    return (Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share") / "zerobench" / "environments"


def environment(name: str, folder: Path | None = None) -> Environment:
    """Environment called `name` in `folder`, by default `environments_folder()`."""
    return Environment(name, (folder or environments_folder()) / name)


def missing_environments() -> tuple[str, ...]:
    """Names of environments that have not been created."""
    return tuple(name for name in PACKAGES if not environment(name).is_made)


def running_in(name: str) -> dict[str, str | None]:
    """Python and package versions of this process, a rank in the environment `name`."""
    versions = {package: version_of(package) for package in PACKAGES[name]}
    return {"name": name, "python": platform.python_version(), "executable": sys.executable, **versions}


def version_of(package: str) -> str | None:
    """Return the version of `package` that ranks import; None if it is not installed for their Python."""
    return training_python().version_of(package)
