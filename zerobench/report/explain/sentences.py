"""Summary of a run in three to six sentences: what fits, what is fastest, what to choose, and how sure that is.

Nothing is ranked inside noise: trials whose times overlap are equally fast, and the one with less memory is chosen. A
trial whose losses disagree, or whose throughput is void, is no choice. Where nothing was timed, the choice is that of a
plan (zerobench.report.explain.choice); what `plan` or `tune` stored with the run is repeated as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from zerobench.common.units import counted, format_bytes, format_count
from zerobench.common.vocabulary import Place, Status, StepKind
from zerobench.config.trial.trial import Evidence
from zerobench.report.explain.candidates import Candidate, candidates, equally_fast, timed_groups
from zerobench.report.explain.decision import sentence
from zerobench.report.explain.decisions import MOST_GROUPS, decisions_among, stored_decision
from zerobench.report.figures.notes import listed
from zerobench.report.figures.predictions.predicted import Cell
from zerobench.report.figures.run.runs import Errors, RunFigures
from zerobench.report.figures.stats import median
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.figures.verdict import verdict_of, verdict_sentences
from zerobench.report.words.column_units import plain

_MOST_NAMES = 3
_MOST_REASON = 100
_NO_MEMORY = "No device memory recorded."


def headline(runs: RunFigures) -> list[str]:
    """Three to six plain sentences about all runs: the verdict that a run keeps; one where no trial has ended."""
    trials = runs.figures
    if not trials:
        return ["No trial has ended yet."]
    verdict = verdict_of(runs.runs)
    if verdict is not None:
        return [plain(sentence) for sentence in [*verdict_sentences(verdict), _evidence(runs)]]
    known = candidates(runs)
    if not _has_figure(trials, known):
        return [_endings(trials)]
    groups = timed_groups(known)
    kept = stored_decision(runs)
    among = len(trials) > 1  # one alone is no choice
    decisions = [kept] if kept else decisions_among(known, groups) if among else []
    chosen = {decision.trial_id for decision in decisions}
    best = None if groups else next((each for each in known if each.figures.spec.trial_id in chosen), None)
    speed = [_fastest(groups), sentence(decisions)]
    sentences = [_fit(trials, known, best), *speed, _evidence(runs), _endings(trials), _doubts(trials, known)]
    names = tuple(trial.label for trial in trials)
    return [plain(text if text.startswith(names) else f"{text[0].upper()}{text[1:]}") for text in sentences if text]


def _has_figure(trials: Sequence[TrialFigures], contenders: Sequence[Candidate]) -> bool:
    """True if there is anything to report but endings."""
    known = any(candidate.needed_bytes is not None for candidate in contenders)
    return known or any(trial.is_completed or trial.sampled_host_bytes for trial in trials)


def _evidence(runs: RunFigures) -> str:
    """Evidence of the figures, and errors of predictions where they were measured too."""
    counts = Counter(trial.spec.evidence for trial in runs.figures if trial.status is not Status.SKIPPED)
    if not counts:
        return ""
    measured = counts.pop(Evidence.MEASURED, 0)
    predicted = " and ".join(f"{count} {evidence.value}" for evidence, count in counts.most_common())
    if not predicted:
        return f"All figures are measured ({counted(measured, 'trial')})."
    if not measured:
        alone = next(iter(counts)).value if len(counts) == 1 else predicted
        return f"All figures are predicted ({alone})."
    error = _median_error(runs.predicted)
    off = "" if error is None else f"; median error of predicted device peaks: {100 * error:.2f}%"
    return f"{counted(measured, 'trial')} measured; predicted: {predicted}{off}."


def _median_error(predicted: Sequence[Errors]) -> float | None:
    """The median size of the error of a steady step's largest total on the device, over predicted trials."""
    by_trial: dict[int, list[Cell]] = {}
    for errors in predicted:
        steady = [cell for cell in errors.peaks(Place.DEVICE) if cell.step is StepKind.STEADY]
        by_trial.setdefault(id(errors.trial), []).extend(steady)
    largest = [
        (max(cell.measured_bytes for cell in cells), max(cell.predicted_bytes for cell in cells))
        for cells in by_trial.values()
        if cells
    ]
    return median([abs(guess / measured - 1) for measured, guess in largest if measured])


def _endings(trials: Sequence[TrialFigures]) -> str:
    """Number of completed trials, and reasons of the others, the commonest first."""
    others = [trial for trial in trials if not trial.is_completed]
    if not others:
        return f"{_all_of(len(trials))} completed."
    counts = Counter(trial.status.words for trial in others)
    statuses = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    unknown = [trial for trial in others if not trial.is_whole]  # the first sentence has the need of the others
    reasons = Counter(reason for trial in unknown if (reason := (trial.reason or "").partition(";")[0] or trial.rule))
    common = "".join(f"; most common reason: {_short(reason)} ({count})" for reason, count in reasons.most_common(1))
    return f"{len(trials) - len(others)} of {counted(len(trials), 'trial')} completed; {statuses}{common}."


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_REASON else f"{line[: _MOST_REASON - 3]}..."


def _sampled(trials: Sequence[TrialFigures]) -> str:
    """Largest host memory of trials that were sampled from outside."""
    sampled = [(size, trial.label) for trial in trials if (size := trial.sampled_host_bytes)]
    if not sampled:
        return _NO_MEMORY
    most, label = max(sampled)
    of = f" ({label})" if len(trials) > 1 else ""
    return f"Peak host memory: {format_bytes(most)} for all processes of a node{of}. {_NO_MEMORY}"


def _fit(trials: Sequence[TrialFigures], contenders: Sequence[Candidate], best: Candidate | None) -> str:
    """Trials that fit, the recommended one or else that with the least memory named, and those that do not."""
    known = [candidate for candidate in contenders if candidate.needed_bytes is not None]
    if not known:
        return _sampled(trials)
    judged = [candidate for candidate in known if candidate.fits is not None]
    ran_out = _ran_out(trials)
    if not judged:
        on_cpu = all(trial.is_on_cpu for trial in trials)
        limit = "CPU run: no device limit" if on_cpu else "Device capacity unknown"
        full = f"; {listed(ran_out, _MOST_NAMES)} ran out of memory" if ran_out else ""
        return f"{limit}; device memory {_range(known)}{full}."
    fitting = [candidate for candidate in judged if candidate.fits]
    too_large = [
        *(f"{each.label} ({format_bytes(each.needed_bytes)} {each.needs_most})" for each in judged if not each.fits),
        *(f"{label} (out of memory)" for label in ran_out),
    ]
    total, capacity = len(judged) + len(ran_out), _capacities(judged)
    if not too_large:
        if total > 1:
            return f"{_all_of(total)} fit in {capacity}: {_range(fitting)}."
        return f"{_need(judged[0], capacity)}."
    refused = f"{listed(too_large, _MOST_NAMES)} {'do' if len(too_large) > 1 else 'does'} not fit"
    if not fitting:
        return f"Nothing fits in {capacity}: {listed(too_large, _MOST_NAMES)}."
    named = best or min(fitting, key=lambda candidate: candidate.needed_bytes or 0)
    return f"{_need(named, capacity)}; {refused} ({len(fitting)} of {total} trials fit)."


def _all_of(count: int) -> str:
    """`1 trial`, `Both trials`, `All 3 trials`."""
    return {1: "1 trial", 2: "Both trials"}.get(count, f"All {count:,} trials")


def _ran_out(trials: Sequence[TrialFigures]) -> list[str]:
    """The trials that ran out of device memory, so that nobody knows their need; repeats once."""
    works: dict[object, str] = {}
    for trial in trials:
        if trial.status is Status.OUT_OF_DEVICE_MEMORY and not trial.is_whole:
            works.setdefault((trial.run_id, trial.config_hash, trial.spec.evidence), trial.label)
    return list(works.values())


def _range(contenders: Sequence[Candidate]) -> str:
    """`8.15 GiB (zero3) to 30.1 GiB (zero1)`."""
    ends = [pick(contenders, key=lambda candidate: candidate.needed_bytes or 0) for pick in (min, max)]
    return " to ".join(
        dict.fromkeys(
            f"{format_bytes(candidate.needed_bytes)} {candidate.needs_most} ({candidate.label})" for candidate in ends
        )
    )


def _need(candidate: Candidate, capacity: str) -> str:
    """`zero2 fits in 62.10 GiB of 79.18 GiB per device (at start-up, steps 59.56 GiB)`."""
    needed = format_bytes(candidate.needed_bytes)
    return f"{candidate.label} fits in {needed} of {capacity} ({candidate.figures.need_moments})"


def _capacities(contenders: Sequence[Candidate]) -> str:
    sizes = sorted({candidate.capacity_bytes for candidate in contenders if candidate.capacity_bytes is not None})
    return " or ".join(format_bytes(size) for size in sizes) + " per device"


def _fastest(groups: Mapping[str, Sequence[Candidate]]) -> str:
    if not groups:
        return ""
    sentences = [_fastest_of(name, group) for name, group in list(groups.items())[:MOST_GROUPS]]
    left = len(groups) - len(sentences)
    return "; ".join(sentences) + (f"; {counted(left, 'more kind')} of work in the tables." if left else ".")


def _fastest_of(name: str, group: Sequence[Candidate]) -> str:
    alike = equally_fast(group)
    best = max(group, key=lambda candidate: candidate.tokens_per_s or 0.0)
    of = f" {name}" if name else ""
    rate = f"{format_count(best.tokens_per_s)} tokens/s"
    if len(group) == 1:
        return f"{best.label}: {rate} (no other trial{of or ' to compare'})"
    if len(alike) == len(group):
        return f"{len(group)} trials{of} equally fast within step-time spread: {rate} ({best.label})"
    others = listed([candidate.label for candidate in alike if candidate is not best], _MOST_NAMES)
    spread = f" (a tie within step-time spread: {others})" if others else ", outside step-time spread"
    return f"fastest{of}: {best.label}, {rate}{spread}"


def _doubts(trials: Sequence[TrialFigures], contenders: Sequence[Candidate]) -> str:
    """Limits of the sentences before: losses or gradients that disagree, void throughput, single repeats."""
    wrong: dict[str, list[str]] = {}
    for trial in trials:
        for what, _, _ in trial.parity.disagreements if trial.parity else ():
            wrong.setdefault(what, []).append(trial.label)
    parts = [
        f"excluded, {what} differ from the reference: {listed(wrong[what], _MOST_NAMES)}"
        for what in sorted(wrong, reverse=True)
    ]
    void = [trial.label for trial in trials if trial.void]
    if void:
        parts.append(f"not ranked, allocator retries: {listed(void, _MOST_NAMES)}")
    timed = [candidate for candidate in contenders if candidate.rates]
    if timed and all(candidate.num_repeats == 1 for candidate in timed):
        parts.append("one repeat per trial: spread within a run, not between runs")
    return f"{'; '.join(parts)}." if parts else ""
