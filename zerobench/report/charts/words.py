"""Units and words that all charts share: one unit a chart, named on its axis, and sentences for each mark."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zerobench.units import format_bytes

_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class ByteAxis:
    """The one unit of a chart's bytes."""

    name: str
    size: int

    def of(self, num_bytes: float) -> float:
        """`num_bytes` in this unit."""
        return float(num_bytes) / self.size

    def show(self, num_bytes: Any) -> str:
        """`num_bytes` in this unit, without its name, for a table whose header names it; `-` where not available."""
        if num_bytes is None or num_bytes != num_bytes:  # noqa: PLR0124 -- only NaN differs from itself
            return "-"
        return "0" if num_bytes == 0 else f"{self.of(num_bytes):,.{self.digits}f}"

    def label(self, num_bytes: float) -> str:
        """`num_bytes` in this unit, without its name, beside a mark."""
        return f"{self.of(num_bytes):,.{min(2, self.digits)}f}"

    @property
    def digits(self) -> int:
        """Decimals in tables: none in plain bytes."""
        return 0 if self.size == 1 else 3


def byte_axis(values: Iterable[float]) -> ByteAxis:
    """The largest unit in which the largest of `values` is at least 1."""
    return _axis(values, _SIZES)


def decimal_axis(values: Iterable[float]) -> ByteAxis:
    """The same in the powers of ten that papers and disks are measured in."""
    return _axis(values, _DECIMAL)


def _axis(values: Iterable[float], sizes: Mapping[str, int]) -> ByteAxis:
    largest = max((abs(value) for value in values), default=0)
    name = [name for name, size in sizes.items() if largest >= size or size == 1][-1]
    return ByteAxis(name, sizes[name])


def share(part: float, whole: float) -> str:
    """`41%`, or `0.4%` below one; `-` of nothing."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < abs(percent) < 0.1:
        return "less than 0.1%"
    return f"{percent:.0f}%" if abs(percent) >= 1 or percent == 0 else f"{percent:.1f}%"


def part_sentence(label: str, part: str, num_bytes: float, whole: float) -> str:
    """What hovering over a part of a bar says: `zero2, gradients: 3.21 GiB, 41% of the peak`."""
    return f"{label}, {part}: {format_bytes(num_bytes)}, {share(num_bytes, whole)} of the peak"
