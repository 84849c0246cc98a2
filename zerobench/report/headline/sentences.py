"""What a run comes to, in three to six sentences: what fits, what is fastest, what to choose, and how sure that is.

Nothing is ranked inside noise: trials whose times overlap are equally fast, and the one with less memory is chosen. A
trial whose losses disagree, or whose throughput is void, is no choice. Where nothing was timed, the choice is that of a
plan (zerobench.report.choice).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from zerobench.records import Place, Status, StepKind
from zerobench.report.choice import ROOM, choose
from zerobench.report.column_units import plain
from zerobench.report.figures.runs import Errors, RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.headline.candidates import Candidate, candidates, equally_fast, timed_groups
from zerobench.report.predictions.predicted import Cell
from zerobench.report.stats import median
from zerobench.report.tables.outcomes import status_text
from zerobench.spec.trial import Evidence
from zerobench.units import format_bytes, format_count

_MOST_NAMES = 3
_MOST_GROUPS = 2
_MOST_REASON = 100


def headline(runs: RunFigures) -> list[str]:
    """Three to six plain sentences about all runs; one where no trial has ended."""
    trials = runs.figures
    if not trials:
        return ["No trial has ended yet."]
    found = candidates(runs)
    groups = timed_groups(found)
    speed = [_fastest(groups), _choice(groups) or _untimed_choice(found)]
    sentences = [_evidence(runs), _endings(trials), _fit(trials, found), *speed, _doubts(trials, found)]
    return [plain(sentence[0].upper() + sentence[1:]) for sentence in sentences if sentence]


def _evidence(runs: RunFigures) -> str:
    """How the figures are come by, and how far predictions are off where they were measured too."""
    counts = Counter(one.spec.evidence for one in runs.figures if one.summary.status is not Status.SKIPPED)
    if not counts:
        return ""
    measured = counts.pop(Evidence.MEASURED, 0)
    predicted = " and ".join(f"{count} {evidence.value}" for evidence, count in counts.most_common())
    if not predicted:
        return f"All figures are measured ({measured} trials)." if measured > 1 else "All figures are measured."
    if not measured:
        return f"Nothing here was measured: all figures are predicted ({predicted})."
    error = _median_error(runs.predicted)
    off = "" if error is None else f"; predicted peaks of device memory are {100 * error:.2f} % off in the median"
    trials = f"{measured} trials are" if measured > 1 else "1 trial is"
    return f"{trials} measured, {predicted} are predicted{off}."


def _median_error(predicted: Sequence[Errors]) -> float | None:
    """The median size of the error of a steady step's largest total on the device, over predicted trials."""
    by_trial: dict[int, list[Cell]] = {}
    for one in predicted:
        steady = [cell for cell in one.peaks(Place.DEVICE) if cell.step is StepKind.STEADY]
        by_trial.setdefault(id(one.trial), []).extend(steady)
    largest = [
        (max(cell.measured_bytes for cell in cells), max(cell.predicted_bytes for cell in cells))
        for cells in by_trial.values()
        if cells
    ]
    return median([abs(guess / measured - 1) for measured, guess in largest if measured])


def _endings(trials: Sequence[TrialFigures]) -> str:
    """How many completed, and why the others did not, the commonest reason first."""
    others = [one.summary for one in trials if not one.summary.is_completed]
    if not others:
        return f"All {len(trials)} trials completed." if len(trials) > 1 else "The one trial completed."
    counts = Counter(map(status_text, others))
    said = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    reasons = Counter(reason for one in others if (reason := one.rule or one.reason))
    common = "".join(f"; the commonest reason: {_short(reason)} ({count})" for reason, count in reasons.most_common(1))
    return f"Of {len(trials)} trials {len(trials) - len(others)} completed, {said}{common}."


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_REASON else f"{line[: _MOST_REASON - 3]}..."


def _fit(trials: Sequence[TrialFigures], found: Sequence[Candidate]) -> str:
    """What fits and what does not, between the least and the most that is needed."""
    known = [one for one in found if one.needed_bytes is not None]
    if not known:
        return "No trial left a figure of device memory."
    judged = [one for one in known if one.fits is not None]
    least = min(judged or known, key=lambda one: one.needed_bytes or 0)
    most = max(judged or known, key=lambda one: one.needed_bytes or 0)
    extremes = f"{_need(least)} needs least" + (f", {_need(most)} most" if most is not least else "")
    failed = [one for one in trials if one.summary.status is Status.OUT_OF_DEVICE_MEMORY]
    works: dict[object, str] = {}
    for one in failed:
        works.setdefault((one.run_id, one.summary.config_hash, one.spec.evidence), one.label)
    ran_out = list(works.values())
    if not judged:
        full = f"; {_names(ran_out)} ran out of it" if ran_out else ""
        return f"Of device memory {extremes}; how much there is is not known, so nothing is said of what fits{full}."
    too_large = [one.label for one in judged if not one.fits] + ran_out
    total = len(judged) + len(ran_out)
    if not too_large:
        return f"All {total} that completed fit in {_capacities(judged)}: {extremes}."
    return f"{total - len(too_large)} of {total} fit in {_capacities(judged)}, {_names(too_large)} not: {extremes}."


def _need(one: Candidate) -> str:
    return f"{one.label} ({format_bytes(one.needed_bytes)})"


def _capacities(found: Sequence[Candidate]) -> str:
    sizes = sorted({one.capacity_bytes for one in found if one.capacity_bytes is not None})
    return " or ".join(format_bytes(size) for size in sizes) + " a device"


def _names(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MOST_NAMES} more" if len(labels) > _MOST_NAMES else ""
    return ", ".join(labels[:_MOST_NAMES]) + more


def _fastest(groups: Mapping[str, Sequence[Candidate]]) -> str:
    if not groups:
        return "Nothing was timed, so nothing is said of speed."
    told = [_fastest_of(name, group) for name, group in list(groups.items())[:_MOST_GROUPS]]
    left = len(groups) - len(told)
    return "; ".join(told) + (f"; and {left} other kinds of work." if left else ".")


def _fastest_of(name: str, group: Sequence[Candidate]) -> str:
    alike = equally_fast(group)
    best = max(group, key=lambda one: one.tokens_per_s or 0.0)
    of = f" {name}" if name else ""
    rate = f"{format_count(best.tokens_per_s)} tokens/s"
    if len(group) == 1:
        return f"the only one timed{of} is {best.label}, with {rate}"
    if len(alike) == len(group):
        return f"no trial{of} is faster than another beyond the spread of its steps, and {best.label} reaches {rate}"
    others = _names([one.label for one in alike if one is not best])
    spread = f" (as fast within the spread: {others})" if others else ", beyond the spread of the steps"
    return f"the fastest{of} is {best.label} with {rate}{spread}"


def _choice(groups: Mapping[str, Sequence[Candidate]]) -> str:
    told = [_chosen(equally_fast(group)) for group in list(groups.values())[:_MOST_GROUPS]]
    return f"Choose {'; '.join(told)}." if told else ""


def _chosen(alike: Sequence[Candidate]) -> str:
    one = alike[0]
    needs = "" if one.needed_bytes is None else f", {format_bytes(one.needed_bytes)}"
    if len(alike) > 1:
        return f"{one.label}: of {len(alike)} equally fast ones it needs the least device memory{needs}"
    return f"{one.label}: it is the fastest{needs and f', with{needs[1:]} of device memory'}"


def _untimed_choice(found: Sequence[Candidate]) -> str:
    """Without times: what `zerobench plan` recommends, by the same rule."""
    fitting = [one for one in found if one.fits and not one.is_reference]
    if not fitting or len({one.work.model for one in fitting}) > 1:
        return ""
    choice = choose(fitting, lambda one: one.option)
    if choice is None:
        return f"Nothing fits with {ROOM:.0%} room, so nothing is recommended."
    best = choice.best
    unjudged = "; host memory is not judged" if best.host_room is None and set(best.offloads) != {"none"} else ""
    return f"Choose {best.label} to begin with: {choice.reason}{unjudged}."


def _doubts(trials: Sequence[TrialFigures], found: Sequence[Candidate]) -> str:
    """What limits all this: losses or gradients that disagree, void throughput, single repeats."""
    wrong: dict[str, list[str]] = {}
    for one in trials:
        for what, _, _ in one.parity.disagreements if one.parity else ():
            wrong.setdefault(what, []).append(one.label)
    parts = [
        f"left out because their {what} disagree with the reference: {_names(wrong[what])}"
        for what in sorted(wrong, reverse=True)
    ]
    void = [one.label for one in trials if one.summary.void]
    if void:
        parts.append(f"not ranked because the allocator had to retry: {_names(void)}")
    timed = [one for one in found if one.rates]
    if timed and all(one.num_repeats == 1 for one in timed):
        parts.append("each was run once, so that the spread is that of steps within a run and not between runs")
    return f"{'; '.join(parts)}." if parts else ""
