"""Why one trial's peak differs from another's: category by category, adding up exactly, each with what makes it.

The peaks are taken whole, each at its own instant, so that the parts are those of two instants: what they come to is
story.py's.
"""

from __future__ import annotations

from typing import Any

from zerobench.records import Category, Place, StepKind
from zerobench.report.explain.category import Explainer
from zerobench.report.explain.find import Named
from zerobench.report.explain.memory import signed_bytes, words
from zerobench.report.explain.passage import Line, Passage, heads, phase_words, says
from zerobench.report.explain.specs import setting_differences
from zerobench.report.explain.terms import Explained
from zerobench.report.memory_causes import MOMENTS
from zerobench.report.memory_difference import CategoryDifference, difference, merged
from zerobench.report.memory_view import Instant, largest_peak
from zerobench.units import format_bytes

_TELLING = 0.01
"""Differences smaller than this part of the sum of all are told together."""


class Pair:
    """Two trials that have a steady peak, and where it lies in each."""

    def __init__(self, a: Named, b: Named, peaks: tuple[Instant, Instant]) -> None:
        self.names = _told_apart(a.label, b.label)
        self.trials = (a.trial, b.trial)
        self.peaks = peaks
        self.explainers = (Explainer(a.trial, peaks[0].rank), Explainer(b.trial, peaks[1].rank))
        self.found = difference(*peaks)

    @property
    def told(self) -> list[CategoryDifference]:
        """The differences that are large enough to be told one by one."""
        least = _TELLING * sum(abs(one.more_bytes) for one in self.found)
        return [one for one in self.found if abs(one.more_bytes) >= least]

    @property
    def more_bytes(self) -> int:
        """By how much the second peak is higher."""
        return self.peaks[1].total_bytes - self.peaks[0].total_bytes


def _told_apart(a: str, b: str) -> tuple[str, str]:
    """Two names without the words that both end in: `zero2`, `zero3` of stages with the same reduce bucket."""
    ours, theirs = a.split(), b.split()
    while min(len(ours), len(theirs)) > 1 and ours[-1] == theirs[-1]:
        ours, theirs = ours[:-1], theirs[:-1]
    return " ".join(ours), " ".join(theirs)


def pair_of(a: Named, b: Named) -> Pair | None:
    """The pair; None where one of them has no steady peak."""
    peaks = [largest_peak(labelled.trial, StepKind.STEADY, Place.DEVICE) for labelled in (a, b)]
    return None if peaks[0] is None or peaks[1] is None else Pair(a, b, (peaks[0], peaks[1]))


def specs_passage(a: Named, b: Named) -> Passage:
    """The settings in which the two differ."""
    found = setting_differences(a.trial, b.trial)
    lines = says(*found) or says("No setting.")
    return Passage(f"{a.label} and {b.label} differ in", lines, {"differ_in": found}, heads(lines, 3))


def memory_passage(pair: Pair) -> Passage:
    """The difference of the steady peaks, the largest part first; the parts add up to it."""
    (a, b), (left, right), more = pair.names, pair.peaks, pair.more_bytes
    compared = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'} than" if more else "as much as"
    lines = says(
        f"{b} needs {format_bytes(right.total_bytes)} of device memory at its steady peak, {compared} {a} "
        f"({format_bytes(left.total_bytes)}).",
        _instants(pair),
    )
    told = [line for one, alike in merged(pair.told, _alike(pair)) for line in _difference_lines(pair, one, alike)]
    start_up = says(_start_up(pair))
    figures = {"differences": [_data(one) for one in pair.found], "more_bytes": more}
    lines += [*told, *says(_rest(pair), _sum(pair)), *start_up]
    return Passage("Device memory", lines, figures, [*heads(told, 4), *start_up])


def _data(one: CategoryDifference) -> dict[str, Any]:
    sizes = {"a_bytes": one.a_bytes, "b_bytes": one.b_bytes, "more_bytes": one.more_bytes}
    return {"category": one.category.value, **sizes}


def _start_up(pair: Pair) -> str | None:
    """What has to fit in each, where start-up needs more than the steady state in either."""
    firsts = [largest_peak(trial, StepKind.FIRST, Place.DEVICE) for trial in pair.trials]
    higher = [
        first for first, peak in zip(firsts, pair.peaks, strict=True) if first and first.total_bytes > peak.total_bytes
    ]
    if not higher or firsts[0] is None or firsts[1] is None:
        return None
    needs = [
        first if first is not None and first.total_bytes > peak.total_bytes else peak
        for first, peak in zip(firsts, pair.peaks, strict=True)
    ]
    told = [
        f"{name} {format_bytes(need.total_bytes)} ({phase_words(need.step.value, need.phase.value)})"
        for name, need in zip(pair.names, needs, strict=True)
    ]
    more = signed_bytes(needs[1].total_bytes - needs[0].total_bytes)
    return f"Including start-up: {' and '.join(told)}, {more}."


def _instants(pair: Pair) -> str:
    when = [phase_words(instant.step.value, instant.phase.value) for instant in pair.peaks]
    if when[0] == when[1]:
        return f"Both peaks are in {when[0]}."
    return f"{pair.names[0]} peaks in {when[0]}, {pair.names[1]} in {when[1]}: tensors of a single phase differ."


def _rest(pair: Pair) -> str | None:
    differences = pair.told
    small = [one for one in pair.found if one not in differences]
    nbytes = sum(one.more_bytes for one in small)
    names = ", ".join(words(one.category) for one in small)
    return f"{signed_bytes(nbytes)} in smaller ones ({names})" if small else None


def _sum(pair: Pair) -> str | None:
    """The differences add up to that of the peaks by construction (memory_difference.py), and are added up again."""
    total = sum(one.more_bytes for one in pair.found)
    return f"= {signed_bytes(total)} together ({total:+,} bytes), the difference of the peaks" if pair.found else None


def _alike(pair: Pair) -> list[Category]:
    """Master weights and moments, where they differ by the same bytes."""
    differences = [one for one in pair.found if one.category in MOMENTS]
    return list(MOMENTS) if len({(one.a_bytes, one.b_bytes) for one in differences}) == 1 else []


def _difference_lines(pair: Pair, one: CategoryDifference, alike: int) -> list[Line]:
    """A difference, and what makes the bytes of both sides; `alike` categories are taken together in it."""
    sides = (one.a_bytes, one.b_bytes)
    name = words(one.category) if alike == 1 else "master weights and moments"
    said = f"{signed_bytes(one.more_bytes)} {name}: {format_bytes(sides[0])} -> {format_bytes(sides[1])}"
    explained = [
        explainer.explain(one.category, nbytes // alike, instant)
        for explainer, nbytes, instant in zip(pair.explainers, sides, pair.peaks, strict=True)
    ]
    least = _TELLING * abs(one.more_bytes)
    reasons = [_reason(side) if side.seen_bytes > least else None for side in explained]
    reasons = [f"{alike} x ({said})" if said and alike > 1 else said for said in reasons]
    if reasons[0] == reasons[1]:
        return [Line(said), *says(reasons[0] and f"both: {reasons[0]}", depth=1)]
    told = [f"{name}: {reason}" for name, reason in zip(pair.names, reasons, strict=True) if reason]
    return [Line(said), *says(*told, depth=1)]


def _reason(one: Explained) -> str:
    """The terms in one phrase, with what they leave over."""
    if not one.terms:
        return one.depends_on or "not explained"
    left = (
        ""
        if one.is_whole or one.not_explained_bytes <= 0
        else (f"; not explained: {format_bytes(one.not_explained_bytes)}")
    )
    return f"{' + '.join(term.words for term in one.terms)}{left}"
