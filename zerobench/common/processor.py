"""The processor's name, which both the record of a run and a rank that computes on it bear."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_name(root: Path = Path("/")) -> str | None:
    """As Linux names it; Arm machines give numbers instead of a name, so the board's name stands in.

    None where the machine does not tell. `root` stands for / in recorded trees.
    """
    for line in _lines(root / "proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    board = next(iter(_lines(root / "sys/devices/virtual/dmi/id/product_name")), None)
    return board or platform.processor() or None


def _lines(path: Path) -> list[str]:
    """The lines of a small file, none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
