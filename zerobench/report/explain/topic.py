"""Parts of an explanation: sentences for people, by topic, and the same figures as data for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zerobench.common.units import format_bytes
from zerobench.report.words.column_units import plain

_INDENT = "  "


@dataclass(frozen=True)
class Line:
    """A sentence; deeper ones say more of the one above."""

    text: str
    depth: int = 0


@dataclass(frozen=True)
class Topic:
    """Sentences under a title, and the figures that they are made of."""

    title: str
    lines: Sequence[Line]
    figures: Mapping[str, Any] = field(default_factory=dict)
    """For `--json`: bytes as integers, by name."""
    brief: Sequence[Line] | None = None
    """The lines without `--details`; None: all of them."""


def says(*sentences: str | None, depth: int = 0) -> list[Line]:
    """The sentences that there are, as lines."""
    return [Line(sentence, depth) for sentence in sentences if sentence]


def in_brief(topics: Sequence[Topic], most_rows: int, width: int = 80) -> list[Topic]:
    """The same in short, less the last lines of it where that is more than `most_rows` on the screen."""
    short = [topic if topic.brief is None else replace(topic, lines=topic.brief) for topic in topics]
    while as_text(short, width).count("\n") >= most_rows:
        last = next((at for at in reversed(range(len(short))) if short[at].brief), None)
        if last is None:
            break
        kept = short[last].lines[:-1]
        short[last : last + 1] = [replace(short[last], lines=kept)] if kept else []
    return short


def heads(lines: Sequence[Line], most: int) -> list[Line]:
    """The first `most` sentences, without those that say more of them, and how many there are besides, if several."""
    sentences = [line for line in lines if not line.depth]
    more = len(sentences) - most
    return sentences if more <= 1 else [*sentences[:most], Line(f"and {more} more")]


def as_text(topics: Sequence[Topic], width: int = 80) -> str:
    """Plain text that wraps at `width` columns; what names and logs hold is made harmless to a terminal."""
    return "\n\n".join(_text(topic, width) for topic in topics if topic.lines)


def _text(topic: Topic, width: int) -> str:
    title = textwrap.fill(plain(topic.title), width, subsequent_indent=_INDENT, break_long_words=False)
    return "\n".join([title, *(_wrapped(line, width) for line in topic.lines)])


def _wrapped(line: Line, width: int) -> str:
    start = _INDENT * (line.depth + 1)
    return textwrap.fill(
        plain(" ".join(line.text.split())),
        width,
        initial_indent=start,
        subsequent_indent=start + _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_data(topics: Sequence[Topic]) -> dict[str, Any]:
    """The figures of all topics together, and their sentences, ready to be written as JSON."""
    figures: dict[str, Any] = {}
    for topic in topics:
        figures |= topic.figures
    texts = [
        {"title": topic.title, "sentences": [line.text for line in topic.lines]} for topic in topics if topic.lines
    ]
    return {**figures, "passages": texts}


def phase_words(step: str, phase: str) -> str:
    """`backward of a steady step`, `the update of the first step` (the phase `step`), `initialization`."""
    if phase == "init":
        return "initialization"
    name = "the update" if phase == "step" else phase
    return f"{name} of {'the first step' if step == 'first' else 'a steady step'}"


def signed(text: str, value: float) -> str:
    """`text`, which has no sign, with that of `value`."""
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{text}"


def signed_bytes(nbytes: int) -> str:
    """`+1.00 GiB`, `-512 B`."""
    return signed(format_bytes(abs(nbytes)), nbytes)
