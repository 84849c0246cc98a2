"""Loads the rule of computed values (cpp/values.cpp) into this process's torch."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import NamedTuple

from zerobench.emulator.build import VALUES_VARIABLE


class Counts(NamedTuple):
    """Number of operations so far."""

    not_computed: int
    """Skipped on the host."""
    computed: int
    """Operations of the device, computed on the host."""


def open_values() -> None:
    """Apply the rule to torch, which must be imported, for the rest of the process.

    Call it before anything replaces torch's CPU allocator, such as the ledger. Raises RuntimeError: this process was
    not started for an emulated GPU, or another allocator is already installed.
    """
    if _library().zerobench_values_open() == 0:
        raise RuntimeError("another allocator replaces torch's own, so large host memory would be real")


def counts() -> Counts:
    """Operations affected by the rule."""
    library = _library()
    return Counts(library.zerobench_values_not_computed(), library.zerobench_values_computed())


@cache
def _library() -> ctypes.CDLL:
    path = os.environ.get(VALUES_VARIABLE)
    if not path:
        raise RuntimeError(f"{VALUES_VARIABLE} is not set: this process was not started for an emulated GPU")
    library = ctypes.CDLL(path)
    for name in ("open", "not_computed", "computed"):
        function = getattr(library, f"zerobench_values_{name}")  # by index it would be another object each time
        function.restype = ctypes.c_int64
        function.argtypes = []
    return library
