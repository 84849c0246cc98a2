"""Builds the rule of computed values (cpp/) for one torch, with that torch's headers."""

from __future__ import annotations

from pathlib import Path

from zerobench.emulator.compiler import CPP

VARIABLE = "ZEROBENCH_EMULATED_VALUES"
"""Environment variable with the built library, for processes on an emulated GPU."""
LIBRARY = "zerobench_values.so"
"""Without the prefix `lib`: libraries with it are loaded before torch (Emulator.variables), and this one needs torch.
"""
SOURCES = Path(__file__).parent / "cpp"


def build_values(torch_lib: Path, out: Path) -> None:
    """Build `out` for the torch with libraries in `torch_lib`. Raises UserError: it does not compile."""
    headers = ["-I", str(torch_lib.parent / "include")]
    torch = [f"-L{torch_lib}", "-lc10", "-ltorch_cpu"]
    CPP.make_library(out, [SOURCES / "values.cpp"], ["-O1", "-std=c++20", *headers, *torch])
