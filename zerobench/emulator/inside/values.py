"""Loads the rule of values (cpp/values.cpp) into this process's torch."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import NamedTuple

from zerobench.emulator.values_build import VARIABLE


class Counts(NamedTuple):
    """Operations so far."""

    not_computed: int
    """Passed over on the host."""
    computed: int
    """Of the device, computed on the host."""


def open_values() -> None:
    """From now on torch, which has been imported, keeps to the rule, for the life of the process.

    Before anything else stands in the place of torch's CPU allocator, the ledger's book too, which may come after.
    Raises RuntimeError: this process was not started for an emulated GPU, or another allocator is there already.
    """
    if _library().zerobench_values_open() == 0:
        raise RuntimeError("another allocator replaces torch's own, so large host memory would be real")


def counts() -> Counts:
    """What the rule has done."""
    library = _library()
    return Counts(library.zerobench_values_not_computed(), library.zerobench_values_computed())


@cache
def _library() -> ctypes.CDLL:
    path = os.environ.get(VARIABLE)
    if not path:
        raise RuntimeError(f"{VARIABLE} is not set: this process was not started for an emulated GPU")
    library = ctypes.CDLL(path)
    for name in ("open", "not_computed", "computed"):
        function = getattr(library, f"zerobench_values_{name}")  # by index it would be another object each time
        function.restype = ctypes.c_int64
        function.argtypes = []
    return library
