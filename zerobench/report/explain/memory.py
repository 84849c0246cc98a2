"""Explanation of one trial's peak of device memory: its phase and rank, start-up, and its categories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Phase, Place, StepKind
from zerobench.config.derived.roles import Role
from zerobench.estimate.clock.collectives import bytes_per_element
from zerobench.records.instants import Instant, largest_peak, peaks_by_rank
from zerobench.records.records import RankRecord
from zerobench.records.trials import Trial, num_params, num_trained, roles, workers
from zerobench.report.explain.category import Explainer, Explanation
from zerobench.report.explain.held_parts import held_part
from zerobench.report.explain.memory_causes import CLOSE, MOMENTS
from zerobench.report.explain.topic import Line, Topic, heads, phase_words, says, signed_bytes
from zerobench.report.figures.capacity import reserved_words
from zerobench.report.figures.memory_difference import difference
from zerobench.report.figures.nvml_view import waterfall
from zerobench.report.figures.stats import spread_over_ranks

_TELLING = 0.005
"""Categories smaller than this part of the peak are listed together."""
_ODD = 0.01
"""A rank farther from the median than this is named."""
_MOST_BRIEF = 5
"""Categories that a screen of 24 lines has room for."""


def peak_topic(trial: Trial) -> Topic | None:
    """Return the steady peak over all ranks, start-up, and memory outside torch; None without a steady peak."""
    seen = largest_peak(trial, StepKind.STEADY, Place.DEVICE)
    if seen is None:
        return None
    start = list(_start_up(trial, seen))
    lines = says(
        f"The steady peak of device memory is {format_bytes(seen.total_bytes)} ({seen.total_bytes:,} bytes), in "
        f"{phase_words('steady', seen.phase.value)}, on rank {seen.rank} of {trial.spec.world_size}"
        + (f", the {seen.role}." if len(roles(trial)) > 1 and seen.role != Role.WORKER else "."),
        _over_ranks(trial),
        *start,
        *_outside(trial),
    )
    brief = says(*start[:1]) if start_up_stays(trial, seen) else []
    return Topic("Peak", lines, {"peak": _instant_data(seen)}, brief)


def _instant_data(instant: Instant) -> dict[str, Any]:
    named = {category.value: nbytes for category, nbytes in instant.categories.items()}
    where = {"rank": instant.rank, "step": instant.step.value, "phase": instant.phase.value}
    return {**where, "total_bytes": instant.total_bytes, "categories": named}


def _over_ranks(trial: Trial) -> str | None:
    role = Role.WORKER.value if workers(trial) else None
    instants = peaks_by_rank(trial, StepKind.STEADY, Place.DEVICE, role)
    peaks = {rank: instant.total_bytes for rank, instant in instants.items()}
    who = "ranks" if len(workers(trial)) in {0, len(trial.ranks)} else "workers"
    spread = spread_over_ranks(peaks)
    if spread is None or len(peaks) < 2:
        only = next(iter(peaks), None)
        return None if trial.spec.world_size == 1 else f"Only rank {only} of {trial.spec.world_size} was tracked."
    if spread.odd_rank is None:
        return f"All {len(peaks)} {who} have the same peak."
    sentence = f"Over {len(peaks)} {who} it is {format_bytes(spread.minimum)} to {format_bytes(spread.maximum)}"
    odd = spread.odd_deviation
    if odd is None or abs(odd) <= _ODD:
        return f"{sentence}: no rank is off the median by more than {100 * _ODD:g}%."
    return f"{sentence}; rank {spread.odd_rank} is the outlier, {100 * odd:+.1f}% off the median."


def _start_up(trial: Trial, steady: Instant) -> Iterator[str]:
    """Initialisation and the first step against the steady peak, and the categories that make the difference."""
    first = largest_peak(trial, StepKind.FIRST, Place.DEVICE)
    if first is None:
        return
    more = first.total_bytes - steady.total_bytes
    when = phase_words("first", first.phase.value)
    if more <= 0:
        less = f"{format_bytes(-more)} less than" if more else "as much as"
        yield f"Start-up peak: {format_bytes(first.total_bytes)}, in {when}, {less} a steady step."
        return
    causes = [f"{entry.category.words} {signed_bytes(entry.more_bytes)}" for entry in difference(steady, first)[:3]]
    yield (
        f"Start-up peak, which must fit too: {format_bytes(first.total_bytes)}, in {when}, "
        f"{format_bytes(more)} beyond the steady peak ({', '.join(causes)})."
    )
    if first.phase is Phase.INIT:
        yield from _copies_of_parameters(trial, first.total_bytes)


def _copies_of_parameters(trial: Trial, nbytes: int) -> Iterator[str]:
    """DeepSpeed flattens the parameters of stages 0 to 2 while the model still holds them (stage_1_and_2.py, __init__;
    fp16/fused_optimizer.py, __init__, clones them too).
    """
    count = num_trained(trial) or num_params(trial)  # frozen ones are not flattened
    stage = trial.spec.zero_stage
    if not count or stage is None or stage == 3:
        return
    element = bytes_per_element(trial.spec.precision)
    copies = next((n for n in (2, 3) if abs(nbytes - n * element * count) <= CLOSE * nbytes), None)
    if copies is not None:
        yield (
            f"That is {copies} x {element} bytes x {count:,} parameters: they exist {copies} times while "
            "the engine is built, as the model's tensors and as DeepSpeed's flattened copies."
        )


def _outside(trial: Trial) -> Iterator[str]:
    """From what NVML saw down to the tensors; without NVML, what the allocator reserved."""
    seen = waterfall(trial)
    if seen is not None:
        parts = {
            "in tensors": seen.allocated_bytes,
            "reserved but unallocated": seen.slack_bytes,
            "CUDA context": seen.context_bytes,
            "NCCL": seen.collectives_bytes,
            "other processes": seen.other_processes_bytes,
            "not explained": seen.unexplained_bytes,
        }
        shares = [f"{format_bytes(nbytes)} {what}" for what, nbytes in parts.items() if nbytes]
        yield f"NVML saw {format_bytes(seen.used_bytes)} used on rank {seen.rank}'s device: {', '.join(shares)}."
        return
    rank = max(trial.ranks, key=lambda rank: max(_reserved(rank).values(), default=0), default=None)
    if rank is None or not (reserved := _reserved(rank)):
        return
    outside = rank.context
    known = {"CUDA context": outside.context_bytes, "NCCL": outside.collectives_bytes} if outside else {}
    beside = [f"{what} {format_bytes(nbytes)}" for what, nbytes in known.items() if nbytes]
    yield (
        f"The allocator of rank {rank.rank} reserves up to {reserved_words(reserved)}, including what start-up left"
        + (f"; in addition {' and '.join(beside)}." if beside else ".")
    )


def _reserved(rank: RankRecord) -> dict[StepKind, int]:
    """The most that a rank's allocator reserved at start-up, and in steps."""
    largest: dict[StepKind, int] = {}
    for row in rank.device_memory:
        largest[row.step] = max(row.peak_reserved_bytes, largest.get(row.step, 0))
    return largest


def categories_topic(explainer: Explainer, instant: Instant, place: Place = Place.DEVICE) -> Topic:
    """Each category at `instant`, the largest first, as arithmetic that is held against the ledger's bytes."""
    of_rank = "" if place is Place.DEVICE else f", rank {instant.rank}"
    title = f"{place.value.capitalize()} memory at the peak{of_rank}"
    if not instant.categories:
        return Topic(title, says("Total only: categories unknown at this point."))
    terms = explainer.instant(instant, place)
    least = _TELLING * instant.total_bytes
    large = [term for term in terms if term.seen_bytes >= least]
    lines = [line for alike in _alike(large) for line in category_lines(alike, instant.total_bytes)]
    brief = heads(lines, _MOST_BRIEF)
    lines += _together(terms[len(large) :]) + says(_balance(terms, instant.total_bytes))
    key = "categories" if place is Place.DEVICE else f"{place.value}_categories"
    return Topic(title, lines, {key: [_data(term) for term in terms]}, brief)


def _alike(terms: Sequence[Explanation]) -> list[list[Explanation]]:
    """Master weights and moments together where each is as large as the others, all else alone; the largest first."""
    moments = [term for term in terms if term.category in MOMENTS]
    if len({(moment.seen_bytes, *(term.words for term in moment.terms)) for moment in moments}) != 1:
        return [[term] for term in terms]
    groups = [moments, *([term] for term in terms if term.category not in MOMENTS)]
    return sorted(groups, key=lambda group: -sum(term.seen_bytes for term in group))


def category_lines(alike: Sequence[Explanation], total_bytes: int) -> list[Line]:
    """The bytes and share of one category, or of several that are alike, and under it where they come from."""
    first, count = alike[0], len(alike)
    share = f", {100 * count * first.seen_bytes / total_bytes:.1f}%" if total_bytes else ""
    names = ", ".join(each.category.words for each in alike)
    size = f"{count} x {format_bytes(first.seen_bytes)}" if count > 1 else format_bytes(first.seen_bytes)
    return [Line(f"{names}: {size}{share}"), *reason_lines(first)]


def reason_lines(explained: Explanation) -> list[Line]:
    """Return the terms with their sum beside the recorded bytes, and the recorded parts where they are not all."""
    parts = says(*map(held_part, explained.parts), depth=1)
    if explained.terms:
        lines = [Line(f"{term.nbytes:,} B = {term.words}", 1) for term in explained.terms]
        return [*lines, Line(_check(explained), 1), *([] if explained.is_whole else parts)]
    if parts:
        rest = explained.seen_bytes - sum(part.total_bytes for part in explained.parts)
        return [*parts, *says(f"{format_bytes(rest)} in smaller parts" if rest > 0 else None, depth=1)]
    reason = f"no exact formula: {explained.depends_on}" if explained.depends_on else "unexplained"
    return [Line(reason, 1)]


def _check(explained: Explanation) -> str:
    left = explained.not_explained_bytes
    verdict = f"; unexplained: {left:,} B" if left > 0 else f": {-left:,} B less" if left else ": exact"
    return f"recorded {explained.seen_bytes:,} B{verdict}"


def _together(small: Sequence[Explanation]) -> list[Line]:
    if not small:
        return []
    nbytes = sum(term.seen_bytes for term in small)
    names = ", ".join(term.category.words for term in small)
    return says(f"{len(small)} smaller categories: {format_bytes(nbytes)} ({names})")


def _balance(explained: Sequence[Explanation], total_bytes: int) -> str:
    """Return how much of the peak neither terms nor recorded parts give."""
    missed = sum(max(each.not_explained_bytes, 0) for each in explained)
    over = sum(max(-each.not_explained_bytes, 0) for each in explained)
    sentence = f"Not itemized: {format_bytes(missed)}, {100 * missed / max(total_bytes, 1):.2f}% of the peak"
    return f"{sentence}; terms exceed the record by {format_bytes(over)} elsewhere." if over else f"{sentence}."


def _data(explained: Explanation) -> dict[str, Any]:
    terms = [
        {"bytes": term.nbytes, "text": term.words, **({"source": term.source} if term.source else {})}
        for term in explained.terms
    ]
    sizes = {"seen_bytes": explained.seen_bytes, "not_explained_bytes": explained.not_explained_bytes}
    parts = [part.model_dump(mode="json") for part in explained.parts]
    explanation = {"category": explained.category.value, **sizes, "terms": terms, "depends_on": explained.depends_on}
    return {**explanation, **({"parts": parts} if parts else {})}


def start_up_stays(trial: Trial, seen: Instant) -> str | None:
    """Return the caution that start-up needs more than the steady peak `seen`; None where it does not."""
    first = largest_peak(trial, StepKind.FIRST, Place.DEVICE)
    if first is None or first.total_bytes <= seen.total_bytes:
        return None
    return f"Start-up, {format_bytes(first.total_bytes)}, must fit too: these changes may not reduce it."
