"""Numbers in tables: one unit for a whole table, named where it is read once, and no digits that nobody reads.

Sentences use zerobench.common.units, where each number brings its own unit.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MISSING = "-"
"""Text of None: not available."""

BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
DECIMAL = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
"""The powers of ten that papers and disks are measured in."""
_BYTE_UNITS = tuple(BINARY.items())[:-1]
_TIME_UNITS = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_MOST_BEFORE_THE_POINT = 9999


@dataclass(frozen=True)
class Unit:
    """A unit and the digits that keep a column of it narrow."""

    name: str
    size: float
    decimals: int
    separator: str = ""
    """Between thousands."""

    def of(self, value: float) -> float:
        """`value` in this unit."""
        return float(value) / self.size

    def show(self, value: float | None) -> str:
        """`value` in this unit, without its name; an exact zero is `0`, so that it is told from a little."""
        if value is None or math.isnan(value):
            return MISSING
        return "0" if value == 0 else f"{self.of(value):{self.separator}.{self.decimals}f}"

    def label(self, value: float) -> str:
        """`value` in this unit, without its name, beside a mark."""
        return f"{self.of(value):{self.separator}.{min(2, self.decimals)}f}"


def byte_unit(values: Iterable[float | None]) -> Unit:
    """The binary unit for a table of bytes: the finest in which the largest has four digits before the point."""
    largest = _largest(values)
    name, size = next((unit for unit in _BYTE_UNITS if largest / unit[1] <= _MOST_BEFORE_THE_POINT), _BYTE_UNITS[-1])
    return Unit(name, size, 0 if name == "B" else _decimals(largest / size))


def byte_axis(values: Iterable[float], sizes: Mapping[str, int] = BINARY) -> Unit:
    """The one unit of a chart's bytes: the largest in which the largest of `values` is at least 1."""
    largest = _largest(values)
    name = [name for name, size in sizes.items() if largest >= size or size == 1][-1]
    return Unit(name, sizes[name], 0 if sizes[name] == 1 else 3, separator=",")


def time_unit(values: Iterable[float | None]) -> Unit:
    """The unit of time for a table of seconds: the coarsest in which the smallest is at least 1."""
    seconds = [value for value in values if value is not None]
    smallest = min((value for value in seconds if value > 0), default=0.0)
    name, size = next((unit for unit in reversed(_TIME_UNITS) if smallest >= unit[1]), _TIME_UNITS[0])
    return Unit(name, size, _decimals(_largest(seconds) / size))


def _largest(values: Iterable[float | None]) -> float:
    return max((abs(value) for value in values if value is not None), default=0.0)


def _decimals(largest: float) -> int:
    return 2 if largest < 100 else 1


def show_whole(value: float | None) -> str:
    """A whole number with its thousands separated."""
    return MISSING if value is None else f"{value:,.0f}"


def show_number(value: float | None) -> str:
    """A plain number with three digits that say something."""
    if value is None:
        return MISSING
    decimals = 1 if value >= 10 else 2 if value >= 1 else 4
    return f"{value:.{decimals}f}"


def show_percent(fraction: float | None, decimals: int = 1, *, signed: bool = False) -> str:
    """A fraction in per cent; a difference brings its signs, `+` and `%`."""
    if fraction is None:
        return MISSING
    return f"{100 * fraction:+.{decimals}f}%" if signed else f"{100 * fraction:.{decimals}f}"


def show_error(error: float | None, decimals: int = 2) -> str:
    """A relative error in per cent with its sign; an exact zero is `0`, equal to the byte; None is not defined."""
    if error is None:
        return MISSING
    if error == 0:
        return "0"
    return show_percent(error, decimals if abs(error) < 1 else 0, signed=True)


def plain(text: str) -> str:
    """`text` on one line without control characters: a name from a sweep must not steer the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
