"""The machine's compilers: which are there, and one call that makes a shared library or says in a line why not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zerobench.errors import UserError


@dataclass(frozen=True)
class Compiler:
    """Programs that compile one language, the first that is there is taken."""

    language: str
    programs: tuple[str, ...]
    package: str
    """What a machine without any installs, for example."""

    def find(self) -> str:
        """Its path. Raises UserError: the machine has none."""
        for name in self.programs:
            if path := shutil.which(name):
                return path
        raise UserError(
            f"emulator: no {self.language} compiler ({', '.join(self.programs)}) on PATH; install one, for example: "
            f"apt install {self.package}"
        )

    def make_library(self, out: Path, files: Iterable[Path], options: Iterable[str]) -> None:
        """Compile and link `files` into `out`. Raises UserError: there is no compiler, or its first error."""
        program = self.find()
        flags = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{out.name}"]
        command = [program, *flags, "-o", str(out), *map(str, files), *options]
        environ = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ, check=False)
        if done.returncode:
            message = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
            raise UserError(f"emulator: {program} cannot build {out.name}: {message}")


C = Compiler("C", ("cc", "gcc", "clang"), "gcc")
CPP = Compiler("C++", ("c++", "g++", "clang++"), "g++")


def find_compilers() -> None:
    """Make sure of both that the emulator is built with. Raises UserError: the machine lacks one."""
    for compiler in (C, CPP):
        compiler.find()
