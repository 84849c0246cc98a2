"""Numbers in tables: one unit for a whole table, named where it is read once, and no digits that nobody reads.

Sentences use zerobench.units, where each number brings its own unit.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MISSING = "-"
"""What a table shows for None: not available."""

_BYTE_UNITS = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30))
_TIME_UNITS = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_MOST_BEFORE_THE_POINT = 9999


@dataclass(frozen=True)
class Unit:
    """A unit and the digits that keep a column of it narrow."""

    name: str
    size: float
    decimals: int

    def show(self, value: float | None) -> str:
        """`value` in this unit, without its name; an exact zero is `0`, so that it is told from a little."""
        if value is None:
            return MISSING
        return "0" if value == 0 else f"{value / self.size:.{self.decimals}f}"


def byte_unit(values: Iterable[float | None]) -> Unit:
    """The binary unit for a table of bytes: the finest in which the largest has four digits before the point."""
    largest = _largest(values)
    name, size = next((unit for unit in _BYTE_UNITS if largest / unit[1] <= _MOST_BEFORE_THE_POINT), _BYTE_UNITS[-1])
    return Unit(name, size, 0 if name == "B" else _decimals(largest / size))


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
