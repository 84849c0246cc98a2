"""The Python that ranks and users' scripts run under: this one, or that of a training environment beside it.

zerobench may be installed without torch, beside a training environment that it must not change. `--python PATH`, or
ZEROBENCH_PYTHON, names the interpreter of that environment: versions and sources of packages are read from there, and
processes that import torch are started there (training_variables.py).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError

VARIABLE = "ZEROBENCH_PYTHON"
"""Environment variable that names the interpreter; empty or unset: this one."""
OPTION = "--python"
OLDEST = (3, 11)
"""The first Python that zerobench runs under."""

_PATIENCE_S = 60.0
_ELF_MACHINES = {3: "i386", 21: "ppc64le", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""e_machine of an ELF header (elf.h), by the name that uname has for it."""

# Any Python from 2.6 on can run it. Editable installs may be found by hooks that only the interpreter itself has.
_PROBE = """
import json, os, platform, sys
found = {}
if sys.version_info >= (3, 8):
    from importlib.util import find_spec
    for name in ("torch", "deepspeed", "transformers"):
        spec = find_spec(name)
        found[name] = list(spec.submodule_search_locations or []) if spec else []
print(json.dumps({
    "version": platform.python_version(), "numbers": list(sys.version_info[:2]), "executable": sys.executable,
    "path": [os.path.abspath(entry) for entry in sys.path if entry], "prefix": sys.prefix,
    "is_virtual": sys.prefix != getattr(sys, "base_prefix", sys.prefix), "machine": platform.machine(),
    "abi": getattr(sys, "abiflags", ""), "folders": found,
}))
"""


@dataclass(frozen=True)
class TrainingPython:
    """An interpreter, by what it says of itself."""

    python: Path
    """As it was named: a link in a virtual environment is not followed, which would leave that environment."""
    version: str
    """`3.12.4`."""
    numbers: tuple[int, int]
    """Major and minor version."""
    bin: Path
    """Folder of its environment's programs: `accelerate`, `deepspeed`, `ninja`."""
    is_own: bool
    """True if its environment is the one that this process runs in."""
    path: tuple[str, ...] = ()
    """Its sys.path, unless it is this process's."""
    virtual_env: Path | None = None
    """Its virtual environment, where it is in one."""
    abi: str = ""
    folders: tuple[tuple[str, str], ...] = ()
    """Folders of the training frameworks by name."""

    @property
    def search_path(self) -> list[str]:
        """Folders that it looks for packages in."""
        return sys.path if self.is_own else list(self.path)

    @property
    def tag(self) -> str:
        """`311`, as wheels name it."""
        return f"{self.numbers[0]}{self.numbers[1]}"

    @property
    def suffix(self) -> str:
        """End of a command to be typed again, so that it means this interpreter."""
        return "" if self.is_own else f" {OPTION} {self.python}"

    def package_folder(self, name: str) -> Path | None:
        """Folder of the top-level package `name`, without importing it; None if it is not installed."""
        spec = importlib.util.find_spec(name) if self.is_own else PathFinder.find_spec(name, list(self.path))
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        return Path(places[0]) if places else next((Path(folder) for one, folder in self.folders if one == name), None)

    def distributions(self) -> Iterable[importlib.metadata.Distribution]:
        """The packages that are installed for it."""
        return importlib.metadata.distributions(path=self.search_path)

    def version_of(self, package: str) -> str | None:
        """The installed version of `package`; None where it is not installed."""
        if self.is_own:
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                return None
        found = importlib.metadata.distributions(name=package, path=list(self.path))
        return next((one.version for one in found), None)


def training_python() -> TrainingPython:
    """Return the interpreter that ZEROBENCH_PYTHON names, else this one. Raises UserError: it cannot be used."""
    named = os.environ.get(VARIABLE)
    return _described(named, VARIABLE) if named else own_python()


def choose_python(named: str) -> TrainingPython:
    """Have `named`, a path or a program on PATH, be the training Python of this process and of those that it starts.

    Raises UserError: it cannot be used.
    """
    chosen = _described(named, OPTION)
    os.environ[VARIABLE] = str(chosen.python)
    return chosen


def own_python() -> TrainingPython:
    """Return the interpreter of this process."""
    return TrainingPython(
        python=Path(sys.executable),
        version=platform.python_version(),
        numbers=(sys.version_info.major, sys.version_info.minor),
        bin=Path(sys.executable).parent,
        is_own=True,
        abi=sys.abiflags,
    )


def _described(named: str, said_by: str) -> TrainingPython:
    """Ask the interpreter `named` about itself; `said_by` is the option or variable that names it."""
    try:
        return _asked(_located(named))
    except UserError as error:
        raise UserError(f"{said_by}: {error}") from None


def _located(named: str) -> Path:
    found = shutil.which(named) if "/" not in named else None
    path = Path(found or named).expanduser().absolute()
    if path.is_dir():
        raise UserError(f"{path} is a folder; give its interpreter, such as {path / 'bin' / 'python'}")
    if not path.is_file():
        raise UserError(f"{path}: no such file; give an interpreter, such as ~/venvs/train/bin/python")
    if not os.access(path, os.X_OK):
        raise UserError(f"{path} is not executable; give an interpreter, such as ~/venvs/train/bin/python")
    theirs, ours = _elf_machine(path), _elf_machine(Path(sys.executable))
    if theirs is not None and ours is not None and theirs != ours:
        raise UserError(f"{path} is built for {_machine_name(theirs)}; this machine is {platform.machine()}")
    return path


def _elf_machine(path: Path) -> int | None:
    """Number of the architecture that a program is built for; None where it is no ELF file, as a script."""
    with path.open("rb") as file:
        header = file.read(20)
    if header[:4] != b"\x7fELF" or len(header) < 20:
        return None
    return int(struct.unpack("<H" if header[5] == 1 else ">H", header[18:20])[0])


def _machine_name(number: int) -> str:
    return _ELF_MACHINES.get(number, f"another architecture (ELF machine {number})")


@cache
def _asked(path: Path) -> TrainingPython:
    """Facts that the interpreter at `path` reports of itself. Raises UserError."""
    facts = _facts(path)
    numbers = tuple(facts["numbers"])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UserError(f"{path} is Python {facts['version']}; zerobench needs {oldest} or newer")
    if facts["machine"] != platform.machine():
        raise UserError(f"{path} runs as {facts['machine']}; this machine is {platform.machine()}")
    return TrainingPython(
        python=path,
        version=facts["version"],
        numbers=(numbers[0], numbers[1]),
        bin=Path(facts["executable"]).parent,
        is_own=Path(facts["prefix"]) == Path(sys.prefix),
        path=tuple(facts["path"]),
        virtual_env=Path(facts["prefix"]) if facts["is_virtual"] else None,
        abi=facts["abi"],
        folders=tuple((name, folders[0]) for name, folders in facts["folders"].items() if folders),
    )


def _facts(path: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [str(path), "-c", _PROBE],
            env={**os.environ, VARIABLE: ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{path} is not a Python interpreter: no answer in {_PATIENCE_S:g} s") from None
    except OSError as error:
        raise UserError(f"{path} cannot be run: {error.strerror or error}") from None
    try:
        facts = json.loads(done.stdout.strip().rpartition("\n")[2])  # a site may print before it
    except ValueError:
        facts = None
    if isinstance(facts, dict) and "numbers" in facts:
        return facts
    said = done.stderr.strip().rpartition("\n")[2][:200]
    raise UserError(f"{path} is not a Python interpreter{f': {said}' if said else ''}")
