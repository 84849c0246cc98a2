"""The machine's compilers: detection, atomic builds of shared libraries, and digests of their sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.errors import UserError


def join_sources(files: Sequence[Path], own: Iterable[str]) -> str:
    """C++ source that includes all of `files`, so that their headers are parsed once.

    `own`: names that several files define separately; later ones are renamed. The first file includes libraries'
    headers, which keep theirs.
    """
    lines = []
    for number, file in enumerate(files):
        renamed = own if number else ()
        lines += [f"#define {name} {name}_{number}" for name in renamed]
        lines += [f'#include "{file}"', *(f"#undef {name}" for name in renamed)]
    return "\n".join([*lines, ""])


@dataclass(frozen=True)
class Compiler:
    """Programs that compile one language; the first that exists is used."""

    language: str
    programs: tuple[str, ...]
    package: str
    """Package to install on a machine without any, as an example."""

    def find(self) -> str:
        """Path of the compiler. Raises UserError if the machine has none."""
        for name in self.programs:
            if path := shutil.which(name):
                return path
        raise UserError(
            f"emulator: no {self.language} compiler ({', '.join(self.programs)}) on PATH; install one, for example: "
            f"apt install {self.package}"
        )

    def make_library(self, out: Path, files: Iterable[Path], options: Iterable[str]) -> None:
        """Compile and link `files` into `out`, completely or not at all: other processes may do the same.

        Raises UserError: there is no compiler, or its first error.
        """
        program = self.find()
        flags = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{out.name}"]
        environ = {**os.environ, "LC_ALL": "C"}
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            built = Path(folder, out.name)
            command = [program, *flags, "-o", str(built), *map(str, files), *options]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ, check=False)
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
                raise UserError(f"emulator: {program} cannot build {out.name}: {first}")
            built.replace(out)


C = Compiler("C", ("cc", "gcc", "clang"), "gcc")
CPP = Compiler("C++", ("c++", "g++", "clang++"), "g++")


def digest_of(files: Iterable[Path], built_for: str = "") -> str:
    """Twelve hex digits over names and contents of the sources, and their target."""
    digest = hashlib.sha256(built_for.encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def find_compilers() -> None:
    """Check for both compilers. Raises UserError: the machine lacks one."""
    for compiler in (C, CPP):
        compiler.find()
