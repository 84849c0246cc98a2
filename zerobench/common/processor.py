"""Name of the processor, for the record of a run and for ranks that compute on it."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_name(root: Path = Path("/")) -> str | None:
    """Name in /proc/cpuinfo; Arm machines have only numbers there, so the board's name is used.

    None if the machine has neither. `root` replaces / in recorded trees.
    """
    for line in _lines(root / "proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    board = next(iter(_lines(root / "sys/devices/virtual/dmi/id/product_name")), None)
    return board or platform.processor() or None


def _lines(path: Path) -> list[str]:
    """Lines of a small file; none if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
