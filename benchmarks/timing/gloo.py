"""What gloo's collectives of two ranks take by themselves on this machine, and memory that is mapped anew.

    python benchmarks/timing/gloo_times.py    # writes gloo.csv: two minutes on an idle machine

No training: each collective by kind and size, the median of 21 after a barrier, in the calmer of two rounds; between
two sizes a straight line. A collective takes more than what gloo copies: where there are no more processors than ranks
its threads wait for each other and for the ranks' own, and the blocks of 32 MiB or more that all-gather and
reduce-scatter make for themselves are mapped anew, their pages filled with zeros as they are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.csv_rows import from_csv
from zerobench.timing.trace import Call

FILE = Path(__file__).with_name("gloo.csv")
RANKS = 2
MAPPING = "mapping"
"""The row of memory that is mapped anew: how much longer it takes to write than memory that was there."""


@dataclass(frozen=True)
class Timed:
    """One row of the file."""

    kind: str
    message_bytes: int
    duration_ns: int


class Gloo:
    """Seconds of collectives by the file's rows."""

    def __init__(self, rows: Iterable[Timed]) -> None:
        self._points: dict[str, list[tuple[int, float]]] = {}
        for row in sorted(rows, key=lambda row: row.message_bytes):
            self._points.setdefault(row.kind, []).append((row.message_bytes, row.duration_ns / 1e9))
        [(nbytes, seconds)] = self._points.pop(MAPPING)
        self.mapped_byte_s = seconds / nbytes

    def call_s(self, call: Call) -> float:
        """Of one collective. Raises KeyError: its kind was not timed."""
        if call.group_size <= 1:
            return 0.0
        points = self._points["send" if call.kind == "recv" else call.kind]
        sizes, seconds = zip(*points, strict=True)
        beyond = max(1.0, call.message_bytes / sizes[-1])
        return float(beyond * np.interp(call.message_bytes, sizes, seconds))


def timed() -> list[Timed]:
    """The rows of the file."""
    return from_csv(Timed, FILE.read_text(encoding="utf-8"))
