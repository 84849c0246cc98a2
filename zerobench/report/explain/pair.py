"""Differences between two trials' peaks: category by category, adding up exactly, each with its cause.

The peaks are taken whole, each at its own instant, so that the parts are those of two instants: what they come to is
story.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.config.deepspeed import reads_key
from zerobench.config.deepspeed.case import Case
from zerobench.config.deepspeed.reading import get
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.instants import Instant, largest_peak
from zerobench.records.trials import Trial, case_of
from zerobench.report.explain.category import Explainer, Explanation
from zerobench.report.explain.find import NamedTrial
from zerobench.report.explain.memory_causes import MOMENTS
from zerobench.report.explain.topic import Line, Topic, heads, phase_words, says, signed_bytes
from zerobench.report.figures.memory_difference import CategoryDifference, difference, merged
from zerobench.report.words.labels import brief

_DEFAULT = " (default)"
_NOT_KNOWN = "unknown"
_NOT_SETTINGS = {"ds_config", "model", "own", "repeat", "steps", "timeout_s"}


def setting_differences(a: Trial, b: Trial) -> list[str]:
    """`strategy: zero2 -> zero3`, one for each setting in which the trials differ; empty where in none."""
    ours, theirs = _settings(a.spec), _settings(b.spec)
    names = dict.fromkeys([*ours, *theirs])
    pairs = {name: (ours.get(name), theirs.get(name)) for name in names}
    settings = [
        f"{name}: {_shown(value)} -> {_shown(other)}" for name, (value, other) in pairs.items() if value != other
    ]
    return [*settings, *_deepspeed(a, b)]


def _settings(spec: TrialSpec) -> dict[str, Any]:
    plain = spec.model_dump(mode="json", exclude=_NOT_SETTINGS)
    plain |= {name: _NOT_KNOWN for name in plain if not spec.knows(name)}
    flat = {"model": spec.model.name, **{f"model.{key}": value for key, value in spec.model.hf_config.items()}}
    for name, value in plain.items():
        inner = value if isinstance(value, Mapping) else None
        flat |= {name: value} if inner is None else {f"{name}.{key}": inner_value for key, inner_value in inner.items()}
    return flat


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else brief(value)
    return text if len(text) <= 60 else "(another one)"


def _deepspeed(a: Trial, b: Trial) -> list[str]:
    """The DeepSpeed keys that either sets and that differ, as they take effect; defaults are those of DeepSpeed."""
    cases = case_of(a), case_of(b)
    keys = dict.fromkeys([*a.spec.ds_config, *b.spec.ds_config])
    keys.pop("zero_optimization.stage", None)  # as the strategy says
    lines = []
    for key in keys:
        values = [_effective(case, trial, key) for case, trial in _both(cases, a, b)]
        if values[0] != values[1]:
            marks = [
                "" if case is None or _sets(trial, key) or not reads_key(trial.spec, key) else _DEFAULT
                for case, trial in _both(cases, a, b)
            ]
            lines.append(f"{key.rpartition('.')[2]}: {values[0]}{marks[0]} -> {values[1]}{marks[1]}")
    return lines


def _both(cases: tuple[Case | None, Case | None], a: Trial, b: Trial) -> list[tuple[Case | None, Trial]]:
    return list(zip(cases, (a, b), strict=True))


def _effective(case: Case | None, trial: Trial, key: str) -> str:
    if case is None:
        return "none, without DeepSpeed"
    return _shown(get(case.config, key)) if _sets(trial, key) or reads_key(trial.spec, key) else "not read"


def _sets(trial: Trial, key: str) -> bool:
    return key in trial.spec.ds_config


_TELLING = 0.01
"""Differences smaller than this part of the sum of all are told together."""


class Pair:
    """Two trials that have a steady peak, and where it lies in each."""

    def __init__(self, a: NamedTrial, b: NamedTrial, peaks: tuple[Instant, Instant]) -> None:
        self.names = _told_apart(a.label, b.label)
        self.trials = (a.trial, b.trial)
        self.peaks = peaks
        self.explainers = (Explainer(a.trial, peaks[0].rank), Explainer(b.trial, peaks[1].rank))
        self.differences = difference(*peaks)

    @property
    def telling(self) -> list[CategoryDifference]:
        """The differences that are large enough to be told one by one."""
        least = _TELLING * sum(abs(entry.more_bytes) for entry in self.differences)
        return [entry for entry in self.differences if abs(entry.more_bytes) >= least]

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


def pair_of(a: NamedTrial, b: NamedTrial) -> Pair | None:
    """The pair; None where one of them has no steady peak."""
    peaks = [largest_peak(labelled.trial, StepKind.STEADY, Place.DEVICE) for labelled in (a, b)]
    return None if peaks[0] is None or peaks[1] is None else Pair(a, b, (peaks[0], peaks[1]))


def specs_topic(a: NamedTrial, b: NamedTrial) -> Topic:
    """The settings in which the two differ."""
    settings = setting_differences(a.trial, b.trial)
    lines = says(*settings) or says("No setting.")
    return Topic(f"{a.label} and {b.label} differ in", lines, {"differ_in": settings}, heads(lines, 3))


def memory_topic(pair: Pair) -> Topic:
    """The difference of the steady peaks, the largest part first; the parts add up to it."""
    (a, b), (left, right), more = pair.names, pair.peaks, pair.more_bytes
    compared = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'} than" if more else "as much as"
    lines = says(
        f"{b} needs {format_bytes(right.total_bytes)} of device memory at its steady peak, {compared} {a} "
        f"({format_bytes(left.total_bytes)}).",
        _instants(pair),
    )
    details = [
        line for entry, alike in merged(pair.telling, _alike(pair)) for line in _difference_lines(pair, entry, alike)
    ]
    start_up = says(_start_up(pair))
    sizes = ("a_bytes", "b_bytes", "more_bytes")
    differences: list[dict[str, Any]] = [
        {"category": entry.category.value, **{size: getattr(entry, size) for size in sizes}}
        for entry in pair.differences
    ]
    figures = {"differences": differences, "more_bytes": more}
    lines += [*details, *says(_rest(pair), _sum(pair)), *start_up]
    return Topic("Device memory", lines, figures, [*heads(details, 4), *start_up])


def _start_up(pair: Pair) -> str | None:
    """Memory that has to fit in each, where start-up needs more than the steady state in either."""
    firsts = [largest_peak(trial, StepKind.FIRST, Place.DEVICE) for trial in pair.trials]
    needs = [
        max(peak, first, key=lambda instant: instant.total_bytes)
        for first, peak in zip(firsts, pair.peaks, strict=True)
        if first is not None
    ]
    if len(needs) < len(firsts) or needs == list(pair.peaks):
        return None
    needs_by_name = [
        f"{name} {format_bytes(need.total_bytes)} ({phase_words(need.step.value, need.phase.value)})"
        for name, need in zip(pair.names, needs, strict=True)
    ]
    more = signed_bytes(needs[1].total_bytes - needs[0].total_bytes)
    return f"Including start-up: {' and '.join(needs_by_name)}, {more}."


def _instants(pair: Pair) -> str:
    when = [phase_words(instant.step.value, instant.phase.value) for instant in pair.peaks]
    if when[0] == when[1]:
        return f"Both peaks are in {when[0]}."
    return f"{pair.names[0]} peaks in {when[0]}, {pair.names[1]} in {when[1]}: tensors of a single phase differ."


def _rest(pair: Pair) -> str | None:
    differences = pair.telling
    small = [entry for entry in pair.differences if entry not in differences]
    nbytes = sum(entry.more_bytes for entry in small)
    names = ", ".join(entry.category.words for entry in small)
    return f"{signed_bytes(nbytes)} in smaller categories ({names})" if small else None


def _sum(pair: Pair) -> str | None:
    """The differences add up to that of the peaks by construction (memory_difference.py), and are added up again."""
    total = sum(entry.more_bytes for entry in pair.differences)
    return f"= {signed_bytes(total)} in total ({total:+,} bytes)" if pair.differences else None


def _alike(pair: Pair) -> list[Category]:
    """Master weights and moments, where they differ by the same bytes."""
    differences = [entry for entry in pair.differences if entry.category in MOMENTS]
    return list(MOMENTS) if len({(entry.a_bytes, entry.b_bytes) for entry in differences}) == 1 else []


def _difference_lines(pair: Pair, entry: CategoryDifference, alike: int) -> list[Line]:
    """A difference, and what makes the bytes of both sides; `alike` categories are taken together in it."""
    sides = (entry.a_bytes, entry.b_bytes)
    name = entry.category.words if alike == 1 else "master weights and moments"
    sentence = f"{signed_bytes(entry.more_bytes)} {name}: {format_bytes(sides[0])} -> {format_bytes(sides[1])}"
    explained = [
        explainer.explain(entry.category, nbytes // alike, instant)
        for explainer, nbytes, instant in zip(pair.explainers, sides, pair.peaks, strict=True)
    ]
    least = _TELLING * abs(entry.more_bytes)
    reasons = [_reason(side) if side.seen_bytes > least else None for side in explained]
    reasons = [f"{alike} x ({reason})" if reason and alike > 1 else reason for reason in reasons]
    if reasons[0] == reasons[1]:
        return [Line(sentence), *says(reasons[0] and f"both: {reasons[0]}", depth=1)]
    texts = [f"{name}: {reason}" for name, reason in zip(pair.names, reasons, strict=True) if reason]
    return [Line(sentence), *says(*texts, depth=1)]


def _reason(explained: Explanation) -> str:
    """The terms in one phrase, with what they leave over."""
    if not explained.terms:
        return explained.depends_on or "unexplained"
    words = " + ".join(term.words for term in explained.terms)
    left = explained.not_explained_bytes
    return words if explained.is_whole or left <= 0 else f"{words}; unexplained: {format_bytes(left)}"
