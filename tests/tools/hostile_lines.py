"""Long lines that make a pattern which backtracks take quadratic time: one text again and again, behind beginnings of
what the pattern matches.
"""

import re
import time
from collections.abc import Callable, Iterator
from re import _constants, _parser  # type: ignore[attr-defined] # what re compiles patterns with; typeshed leaves it out
from typing import Any

REPEATED = ("1", " ", "a", "A", "-", "/", "[", '"', "|", "a.", ".-", "a:")
_ENDS = ("", "\x00x")
"""A search may fail at the end alone, and begin anew at each character before it."""
SHORT, LONG = 1_000, 4_000
_TELLING_S = 0.001
"""Below this nothing is measured: a quadratic search of LONG characters takes a hundred times as long."""
_LINEAR = 8
"""A linear search takes 4 times as long for LONG characters as for SHORT ones, a quadratic one 16 times."""


def beginnings(pattern: str, most: int = 6) -> list[str]:
    """Return beginnings of a text that `pattern` matches, the empty one and a whole one among them."""
    text = _example(_parser.parse(pattern))
    step = max(1, -(-len(text) // (most - 2)))
    return list(dict.fromkeys(["", *(text[:end] for end in range(1, len(text), step)), text]))


def hostile_lines(pattern: str, length: int) -> Iterator[str]:
    """Yield lines of `length` characters for a search by `pattern`."""
    starts = beginnings(pattern)
    for start in starts:
        for repeated in dict.fromkeys((*REPEATED, start or "x")):
            yield from ((start + repeated * (length // len(repeated)))[:length] + end for end in _ENDS)


def superlinear(search: Callable[[str], Any], pattern: str) -> str | None:
    """Return the beginning of the first hostile line that `search` takes more than linear time for."""
    lines = zip(hostile_lines(pattern, SHORT), hostile_lines(pattern, LONG), strict=True)
    return next((long[:80] for short, long in lines if _grows(search, short, long)), None)


def _grows(search: Callable[[str], Any], short: str, long: str) -> bool:
    if _seconds(search, long) < _TELLING_S:
        return False
    return min(_seconds(search, long) for _ in range(5)) > _LINEAR * min(_seconds(search, short) for _ in range(5))


def _seconds(search: Callable[[str], Any], text: str) -> float:
    began = time.thread_time()
    search(text)
    return time.thread_time() - began


def _example(parsed: Any) -> str:
    """A short text that a parsed pattern matches, but for what it looks ahead to and behind."""
    return "".join(_example_of(kind, value) for kind, value in parsed)


def _example_of(kind: Any, value: Any) -> str:
    names = _constants
    if kind is names.LITERAL:
        return chr(value)
    if kind is names.NOT_LITERAL:
        return "x" if value != ord("x") else "y"
    if kind is names.ANY:
        return "x"
    if kind is names.IN:
        return _example_of_set(value)
    if kind in {names.MAX_REPEAT, names.MIN_REPEAT, names.POSSESSIVE_REPEAT}:
        least, most, inner = value
        return _example(inner) * int(max(least, min(1, most)))
    if kind is names.BRANCH:
        return _example(value[1][0])
    if kind is names.SUBPATTERN:
        return _example(value[-1])
    if kind is names.ATOMIC_GROUP:
        return _example(value)
    return ""


def _example_of_set(members: Any) -> str:
    kind, value = members[0]
    candidates = [chr(value)] if kind is _constants.LITERAL else [chr(value[0])] if kind is _constants.RANGE else []
    allowed = re.compile(_set_source(members))
    return next((one for one in [*candidates, *"a1 .-_/:x\t=", "~"] if allowed.match(one)), "x")


def _set_source(members: Any) -> str:
    parts = {
        _constants.LITERAL: lambda value: re.escape(chr(value)),
        _constants.RANGE: lambda value: f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}",
        _constants.NEGATE: lambda _: "^",
        _constants.CATEGORY: lambda value: _CATEGORIES[value],
    }
    return f"[{''.join(parts[kind](value) for kind, value in members)}]"


_CATEGORIES = {
    _constants.CATEGORY_DIGIT: r"\d",
    _constants.CATEGORY_NOT_DIGIT: r"\D",
    _constants.CATEGORY_SPACE: r"\s",
    _constants.CATEGORY_NOT_SPACE: r"\S",
    _constants.CATEGORY_WORD: r"\w",
    _constants.CATEGORY_NOT_WORD: r"\W",
}
