"""The sentence that answers, before all that it rests on, and the settings to change, each with what it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category
from zerobench.records.instants import OPTIMIZER_STATES, Instant
from zerobench.records.records import PeakPart
from zerobench.records.trials import Trial
from zerobench.report.explain.held_parts import holders_of
from zerobench.report.explain.pair import Pair
from zerobench.report.explain.remedies import is_held_otherwise, remedy
from zerobench.report.explain.savings import Savings
from zerobench.report.explain.story import gathered_again
from zerobench.report.explain.topic import Line, Topic, phase_words, says, signed_bytes

TITLE = "Answer"
_MOST_CAUSES = 3
_TELLING = 0.1
"""Of the difference, or of the peak: smaller parts are no causes worth a setting."""
_TELLING_PART = 0.2
"""Of a cause: parts from which on the holder is worth a setting of its own."""

Causes = dict[str, tuple[Category, int]]
"""By name: a category of it, by which its setting is found, and its bytes."""


def pair_answer(pair: Pair, known: Callable[[Trial, Instant], Savings]) -> Topic:
    """Return which of the two peaks higher, by what, and the settings that make the larger one smaller; `known` gives
    their savings.
    """
    more = pair.more_bytes
    if not more:
        return _topic([f"{pair.names[0]} and {pair.names[1]} have equal device peaks."])
    at = 1 if more > 0 else 0
    sizes = {
        difference.category: abs(difference.more_bytes)
        for difference in pair.differences
        if difference.more_bytes * more > 0
    }
    causes = _largest(sizes, abs(more))
    mostly = ", ".join(f"{name} {signed_bytes(nbytes)}" for name, (_, nbytes) in causes.items())
    sentence = f"{pair.names[at]} peaks {format_bytes(abs(more))} higher than {pair.names[1 - at]} in device memory"
    lines = says(gathered_again(pair), depth=1)
    return _topic(
        [
            f"{sentence}{f': {mostly}' if mostly else ''}.",
            *_ways_out(pair.trials[at], pair.peaks[at], causes, known(pair.trials[at], pair.peaks[at])),
        ],
        lines,
    )


def trial_answer(trial: Trial, label: str, seen: Instant, known: Savings) -> Topic:
    """Return where the steady peak `seen` is, its largest categories, and the settings that make it smaller."""
    causes = _largest(seen.categories, seen.total_bytes)
    mostly = ", ".join(f"{name} {format_bytes(nbytes)}" for name, (_, nbytes) in causes.items())
    where = phase_words("steady", seen.phase.value)
    sentence = f"{label} peaks at {format_bytes(seen.total_bytes)} of device memory, in {where}"
    return _topic([f"{sentence}{f': {mostly}' if mostly else ''}.", *_ways_out(trial, seen, causes, known)])


def _topic(sentences: Sequence[str], lines: Sequence[Line] = ()) -> Topic:
    """The answer, its figures, and settings."""
    first, *rest = sentences
    return Topic(TITLE, [Line(first), *lines, *says(*rest, depth=1)], {"answer": first, "settings": rest})


def _largest(sizes: Mapping[Category, int], whole: int) -> Causes:
    """Return the causes larger than a tenth of `whole`, the largest first; optimizer states are one cause."""
    causes: Causes = {}
    for category, nbytes in sizes.items():
        name = "optimizer states" if category in OPTIMIZER_STATES else category.words
        causes[name] = (category, nbytes + causes.get(name, (category, 0))[1])
    ranked = sorted(causes.items(), key=lambda cause: -cause[1][1])
    return dict([cause for cause in ranked if cause[1][1] >= _TELLING * whole][:_MOST_CAUSES])


def _telling_parts(seen: Instant, category: Category, nbytes: int) -> list[PeakPart | None]:
    """The largest part, and those that make up a fifth of what is to become smaller; None where the record has none."""
    others = seen.parts.get(category, ())[1:]
    return [seen.largest_part(category), *(part for part in others if part.total_bytes >= _TELLING_PART * nbytes)]


def _ways_out(trial: Trial, seen: Instant, causes: Causes, known: Savings) -> Iterator[str]:
    """For each cause the setting that makes it smaller, then the saving of the single best setting."""
    for name, (category, nbytes) in causes.items():
        told: set[str | None] = {None}
        for part in _telling_parts(seen, category, nbytes):
            change = remedy(trial, category, seen.categories.get(category, 0), part)
            held = f", {holders_of(part)}" if part is not None and is_held_otherwise(category, part) else ""
            if change not in told:
                yield f"To shrink {name}{held}: {change}."
            elif held and change is None:
                yield f"{name.capitalize()}{held}: no known setting makes them smaller."
            told.add(change)
    if known.known:
        best = known.known[0]
        basis = "at this peak" if best.recorded_by is None else f"as {best.recorded_by} recorded"
        yield f"Largest saving of one setting: {best.setting}, {signed_bytes(best.more_bytes)} {basis}."
