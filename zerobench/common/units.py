"""Formats and parses bytes, counts and seconds; elsewhere they are plain numbers."""

from __future__ import annotations

import math
import re
from typing import Any

from zerobench.common.errors import UserError

_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES_PER_UNIT = {"b": 1, **{unit.lower(): size for unit, size in (_BINARY | _DECIMAL).items()}}
_COUNTS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_LARGEST_BYTES = 2**63 - 1
_NOT_AVAILABLE = "-"


def format_bytes(num_bytes: float | None, digits: int = 2) -> str:
    """Format `num_bytes` in the largest binary unit with a value of at least 1: `1.23 GiB`; None is `-`.

    Whole bytes below 1 KiB are shown as `512 B`; a difference keeps its sign.
    """
    if num_bytes is None:
        return _NOT_AVAILABLE
    if abs(num_bytes) < 1024:
        return f"{num_bytes:.0f} B"
    shown = ""
    for unit, size in _BINARY.items():
        shown = f"{num_bytes / size:.{digits}f} {unit}"
        # Rounding may reach the next unit: 1023.999 KiB reads as 1.00 MiB.
        if round(abs(num_bytes) / size, digits) < 1024:
            break
    return shown


def format_count(count: float | None) -> str:
    """Format `count` with three significant digits: `1.24 B`, `124 M`, `57`; None is `-`."""
    if count is None:
        return _NOT_AVAILABLE
    for unit, size in reversed(_COUNTS.items()):
        if float(f"{abs(count) / size:.3g}") >= 1:
            return f"{_three_digits(count / size)} {unit}"
    return str(count) if isinstance(count, int) else _three_digits(count)


def _three_digits(value: float) -> str:
    """Three significant digits, without an exponent below 1000."""
    rounded = float(f"{value:.3g}")
    whole = len(str(int(abs(rounded))))
    return f"{rounded:.{max(0, 3 - whole)}f}"


def format_seconds(seconds: float | None) -> str:
    """Format `seconds` as `45.0 us`, `12.3 ms`, `1.23 s`, `2 min 05 s` or `1 h 02 min`; None is `-`."""
    if seconds is None:
        return _NOT_AVAILABLE
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.9995e-3:
        return f"{sign}{_three_digits(size * 1e6)} us"
    if size < 0.9995:
        return f"{sign}{_three_digits(size * 1e3)} ms"
    if size < 59.95:
        return f"{sign}{_three_digits(size)} s"
    whole = round(size)
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60:02d} s"
    minutes = round(size / 60)
    return f"{sign}{minutes // 60} h {minutes % 60:02d} min"


def format_spent(seconds: float) -> str:
    """Format elapsed time in whole seconds: `5 s`, `2 min 05 s`."""
    return f"{seconds:.0f} s" if seconds < 59.5 else format_seconds(round(seconds))


def parse_bytes(value: str | float, field: str = "bytes") -> int:
    """Parse bytes written as `80GiB` (2^30), `1TB` (10^12), `2e9` or a plain number.

    `field` names the value in the error. Raises UserError for anything else, for a negative or an infinite size, and
    for `80G`, which is ambiguous between GB and GiB.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _not_bytes(field, value)
    if isinstance(value, int):
        size: float = value  # a large integer stays exact
    else:
        size = _parse_text(value, field) if isinstance(value, str) else value
    if not (math.isfinite(size) and 0 <= size <= _LARGEST_BYTES):
        raise _not_bytes(field, value)
    return round(size)


def _parse_text(text: str, field: str) -> float:
    number, unit = _split(text.strip())
    if number is None:
        raise _not_bytes(field, text)
    if unit in {"k", "m", "g", "t"}:
        letter = unit.upper() if unit != "k" else "k"
        raise UserError(
            f"{field}: {text!r} is ambiguous; write {number} {letter}B (powers of 1000) "
            f"or {number} {unit.upper()}iB (powers of 1024)"
        )
    if unit not in _BYTES_PER_UNIT and unit:
        raise _not_bytes(field, text)
    size = _BYTES_PER_UNIT.get(unit, 1)
    exact = number.isdigit() and len(number) <= len(str(_LARGEST_BYTES))
    return int(number) * size if exact else float(number) * size


def _split(text: str) -> tuple[str | None, str]:
    match = _NUMBER.match(text)
    if match is None or not text.isascii():
        return None, ""
    return match.group(), text[match.end() :].strip().lower()


def _not_bytes(field: str, value: object) -> UserError:
    shown = repr(value if isinstance(value, str | int | float) else type(value).__name__)[:60]
    return UserError(
        f"{field}: {shown} is not a number of bytes; for example 500MB, 80GiB, 1TB or 2e9 "
        f"(units: B, {', '.join(_DECIMAL)}, {', '.join(_BINARY)})"
    )


def brief(value: Any) -> str:
    """Shortest exact form of a value: 5e8 for 500000000, and true as in JSON and YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float):
        return str(value)
    if abs(value) >= 1e300:  # a larger integer has no float to write it as
        return str(value)
    exact = [text for text in (str(value), f"{value:g}") if float(text) == value]
    return min(exact, key=len, default=str(value)).replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def times_as_long(ratio: float) -> str:
    """Format a ratio of durations: `34% longer`, or from 2 on `2.6 times as long`."""
    return f"{ratio:.1f} times as long" if ratio >= 2 else f"{100 * (ratio - 1):.1f}% longer"


def counted(number: int, word: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
