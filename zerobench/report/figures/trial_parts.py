"""The rows of one trial's tables: its peaks, ranks, phases, timed steps and notes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.records.instants import (
    Instant,
    ModelStates,
    end_instant,
    largest_peak,
    model_states,
    peak_bytes_of,
    peak_instant,
)
from zerobench.records.records import MemoryRow, PhaseMark, RankRecord
from zerobench.records.trials import Trial, roles
from zerobench.report.figures.server import side_sentences
from zerobench.report.figures.speed import slowest_steps, step_seconds_by_rank, timed_tokens

Peaks = Sequence[tuple[Place, Instant]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """One rank. The first peak is that of the first step, start-up included; device and host peaks those of
    the steady step; allocated, reserved and used those of any step.
    """

    rank: int
    role: str
    hostname: str
    node: int | None
    device_name: str
    device_uuid: str | None
    device_peak_bytes: int | None
    first_peak_bytes: int | None
    host_peak_bytes: int | None
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    nvml_used_peak_bytes: int | None
    context_bytes: int | None
    collectives_bytes: int | None
    other_processes_bytes: int | None
    alloc_retries: int | None
    step_time_s_median: float | None
    states: ModelStates | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """Totals of one place over one phase; Unix times of the phase in that same step."""

    rank: int
    step: StepKind
    phase: str
    place: Place
    live_bytes: int | None
    peak_bytes: int | None
    start_s: float | None
    end_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """A timed step as its slowest rank took it; `tokens`: of the step, all ranks together."""

    step_index: int
    step_s: float
    forward_s: float | None
    backward_s: float | None
    optimizer_s: float | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Note:
    """Note for a reader of the figures; `rank` is None if it is of the whole trial."""

    rank: int | None
    note: str


def steady_peaks(trial: Trial) -> Iterator[tuple[Place, Instant]]:
    places = {row.place for rank in trial.ranks for row in rank.memory}
    for place in (held for held in Place if held in places):
        for role in roles(trial):
            instant = largest_peak(trial, StepKind.STEADY, place, role)
            if instant is not None:
                yield place, instant


def largest_of(steady: Peaks, place: Place) -> Instant | None:
    """The largest over the roles, the lowest rank of equals."""
    instants = [instant for where, instant in steady if where is place]
    return max(instants, key=lambda instant: (instant.total_bytes, -instant.rank), default=None)


def place_peaks(trial: Trial, steady: Peaks) -> Iterator[tuple[Place, Instant]]:
    """The steady peaks; where nobody watched within the phases, as on NVMe, what lay there at that phase's end."""
    for place in dict.fromkeys(place for place, _ in steady):
        peak = largest_of(steady, place)
        if peak is not None and not peak.categories:
            rank = next(rank for rank in trial.ranks if rank.rank == peak.rank)
            peak = end_instant(rank, StepKind.STEADY, peak.phase, place)
        if peak is not None:
            yield place, peak


def rank_rows(trial: Trial) -> Iterator[RankFigures]:
    seconds = step_seconds_by_rank(trial)
    for rank in trial.ranks:
        rows, outside = rank.device_memory, rank.context
        yield RankFigures(
            rank=rank.rank,
            role=rank.role,
            hostname=rank.hostname,
            node=rank.node,
            device_name=rank.device_name,
            device_uuid=rank.device_uuid,
            device_peak_bytes=_peak_bytes(rank, StepKind.STEADY, Place.DEVICE),
            first_peak_bytes=_peak_bytes(rank, StepKind.FIRST, Place.DEVICE),
            host_peak_bytes=_peak_bytes(rank, StepKind.STEADY, Place.HOST),
            allocated_peak_bytes=_largest(row.peak_allocated_bytes for row in rows),
            reserved_peak_bytes=_largest(row.peak_reserved_bytes for row in rows),
            nvml_used_peak_bytes=_largest(row.nvml_used_bytes for row in rows),
            context_bytes=None if outside is None else outside.context_bytes,
            collectives_bytes=None if outside is None else outside.collectives_bytes,
            other_processes_bytes=None if outside is None else outside.before_bytes,
            alloc_retries=_largest(row.alloc_retries for row in rows),
            step_time_s_median=seconds.get(rank.rank),
            states=model_states(rank),
        )


def _peak_bytes(rank: RankRecord, step: StepKind, place: Place) -> int | None:
    instant = peak_instant(rank, step, place)
    return None if instant is None else instant.total_bytes


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def phase_rows(trial: Trial, steady: Peaks) -> Iterator[PhaseFigures]:
    fullest = largest_of(steady, Place.DEVICE)
    rank = next((rank for rank in trial.ranks if fullest is None or rank.rank == fullest.rank), None)
    if rank is None:
        return
    totals: dict[tuple[StepKind, Phase, Place], MemoryRow | None] = {}
    for row in rank.memory:
        key = row.step, row.phase, row.place
        totals[key] = totals.get(key) or (row if row.category is Category.TOTAL else None)
    for (step, phase, place), total in totals.items():
        mark = _mark(rank, step, phase)
        yield PhaseFigures(
            rank=rank.rank,
            step=step,
            phase=phase.value,
            place=place,
            live_bytes=None if total is None else total.live_bytes,
            peak_bytes=None if total is None else peak_bytes_of(total),
            start_s=None if mark is None else mark.start_s,
            end_s=None if mark is None else mark.end_s,
        )


def _mark(rank: RankRecord, step: StepKind, phase: str) -> PhaseMark | None:
    """The mark of `phase` in the step that the memory rows are of: the first, or the last memory step."""
    kind = "first" if step is StepKind.FIRST else "memory"
    marks = [mark for mark in rank.marks if mark.phase == phase and (mark.kind == kind or mark.step_index < 0)]
    return marks[-1] if marks else None


def step_rows(trial: Trial) -> Iterator[StepFigures]:
    steps = slowest_steps(trial)
    sizes = timed_tokens(trial) if trial.spec.knows("gradient_accumulation_steps") else []
    for index, (step, tokens) in enumerate(itertools.zip_longest(steps, sizes[: len(steps)])):
        yield StepFigures(
            step_index=index,
            step_s=step.step_s,
            forward_s=step.forward_s,
            backward_s=step.backward_s,
            optimizer_s=step.optimizer_s,
            tokens=tokens,
        )


def notes(trial: Trial) -> Iterator[tuple[int | None, str]]:
    yield from ((None, note) for note in trial.record.notes)
    yield from ((rank.rank, note) for rank in trial.ranks for note in rank.notes)
    yield from ((None, sentence) for sentence in side_sentences(trial))
    yield from ((None, text) for text in dict.fromkeys(text for rank in trial.ranks for text in rank.departures))
