"""Builds the rule of values (cpp/) against one torch, whose headers come with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from zerobench.errors import UserError

VARIABLE = "ZEROBENCH_EMULATED_VALUES"
"""Environment variable with the built library, for processes on an emulated GPU."""
LIBRARY = "zerobench_values.so"
"""No `lib` before it: whatever begins so is loaded before torch (Emulator.variables), and this needs torch there."""
SOURCES = Path(__file__).parent / "cpp"

_COMPILERS = ("c++", "g++", "clang++")


def find_cpp_compiler() -> str:
    """The machine's C++ compiler. Raises UserError: it has none."""
    for name in _COMPILERS:
        if found := shutil.which(name):
            return found
    raise UserError(
        f"emulator: no C++ compiler ({', '.join(_COMPILERS)}) on PATH; install one, for example: apt install g++"
    )


def build_values(torch_lib: Path, out: Path) -> None:
    """Build `out` for the torch whose libraries lie in `torch_lib`. Raises UserError: it does not compile."""
    compiler = find_cpp_compiler()
    flags = ["-shared", "-fPIC", "-O1", "-std=c++20", "-w", f"-Wl,-soname,{out.name}"]
    headers = ["-I", str(torch_lib.parent / "include")]
    torch = [f"-L{torch_lib}", "-lc10", "-ltorch_cpu"]
    command = [compiler, *flags, *headers, str(SOURCES / "values.cpp"), "-o", str(out), *torch]
    environ = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ, check=False)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
        raise UserError(f"emulator: {compiler} cannot build {out.name}: {said}")
