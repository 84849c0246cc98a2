"""All that documents show of one trial, small enough to be held of each of a hundred thousand."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.roles import Role
from zerobench.config.trial.trial import TrialSpec
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
from zerobench.report.figures.batch_ramp import BatchFigures, batch_figures
from zerobench.report.figures.host_parameters import Holder, holders
from zerobench.report.figures.name import TrialName
from zerobench.report.figures.parity import Parity
from zerobench.report.figures.pipeline import StageRow, stages
from zerobench.report.figures.recovery import CheckpointFigures, resumed
from zerobench.report.figures.server import Side, side_sentences, sides
from zerobench.report.figures.speed import slowest_steps, step_seconds_by_rank, timed_tokens
from zerobench.report.figures.standing import HeldShare, stood
from zerobench.report.figures.strategy_figures import Figures, figures_of
from zerobench.report.figures.summary import Summary, summary_of


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
    """What a reader of the figures must know; `rank` is None where the trial says it as a whole."""

    rank: int | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """One trial: its summary, its peaks by category, its ranks, and the course of its step."""

    run_id: str
    trial_id: str
    summary: Summary
    label: str = ""
    """Its name in tables, which only all trials together decide."""
    parity: Parity | None = None
    """How its losses and gradients compare with its reference's, which another trial decides."""
    roles: Sequence[str]
    steady: Sequence[tuple[Place, Instant]]
    """In each place, of each role, the steady peak of the rank where it is largest."""
    peaks: Sequence[tuple[Place, Instant]]
    """The largest of each place; where nobody watched within phases, as on NVMe, what lay there at that phase's end."""
    ranks: Sequence[RankFigures]
    phases: Sequence[PhaseFigures]
    """Of the rank with the largest device peak, in every place."""
    steps: Sequence[StepFigures]
    notes: Sequence[Note]
    sides: Sequence[Side]
    """Of a parameter server."""
    stages: Sequence[StageRow]
    """Of a pipeline."""
    batches: Sequence[BatchFigures]
    holders: Sequence[Holder]
    """Of host memory, where states are offloaded."""
    standing: Sequence[HeldShare]
    """Memory held at the failed allocation."""
    compared: Sequence[Figures]
    """What is held against a single process' of the same work: its sides, of a trial that was measured."""
    resumed: CheckpointFigures | None
    """What its checkpoints cost; without the distance of its losses, which takes another trial."""

    @property
    def spec(self) -> TrialSpec:
        return self.summary.spec

    @property
    def is_believed(self) -> bool:
        """Whether its losses and gradients do not speak against it."""
        return self.parity is None or self.parity.agrees

    @property
    def name(self) -> TrialName:
        """What every table says of it."""
        status = self.summary.status.value
        return TrialName(
            self.trial_id, self.label, self.spec.evidence.value, self.summary.gpu, status, self.is_believed
        )

    @property
    def marked_label(self) -> str:
        """Its name in charts: with a mark where its memory is not believed."""
        return self.label if self.is_believed else f"! {self.label}"

    def peak(self, place: Place) -> Instant | None:
        """The largest steady peak of `place`, by category."""
        return next((instant for where, instant in self.peaks if where is place), None)

    def beside(self, label: str, parity: Parity | None, loss_distance: float | None) -> TrialFigures:
        """It with what other trials decide: its label, and how far its losses are from theirs."""
        with_distance = self.resumed and replace(self.resumed, loss_distance=loss_distance)
        return replace(self, label=label, parity=parity, resumed=with_distance)

    @property
    def among_ranks(self) -> list[RankFigures]:
        """The ranks that stand beside each other: those that train; a server where it alone was run."""
        return [rank for rank in self.ranks if rank.role == Role.WORKER] or list(self.ranks)


def trial_figures(trial: Trial) -> TrialFigures:
    """The figures of `trial`, without its label and its parity."""
    steady, present = list(_steady(trial)), roles(trial)
    return TrialFigures(
        run_id=trial.record.run_id,
        trial_id=trial.record.trial_id,
        summary=summary_of(trial),
        roles=present,
        steady=steady,
        peaks=list(_peaks(trial, steady)),
        ranks=list(_ranks(trial)),
        phases=list(_phases(trial, steady)),
        steps=list(_steps(trial)),
        notes=[Note(rank, sys.intern(note)) for rank, note in _notes(trial)],
        sides=sides(trial),
        stages=stages(trial),
        batches=batch_figures(trial),
        holders=list(holders(trial)),
        standing=list(stood(trial)),
        compared=list(figures_of(trial)),
        resumed=resumed(trial, ()),
    )


Peaks = Sequence[tuple[Place, Instant]]


def _steady(trial: Trial) -> Iterator[tuple[Place, Instant]]:
    places = {row.place for rank in trial.ranks for row in rank.memory}
    for place in (held for held in Place if held in places):
        for role in roles(trial):
            instant = largest_peak(trial, StepKind.STEADY, place, role)
            if instant is not None:
                yield place, instant


def _largest_of(steady: Peaks, place: Place) -> Instant | None:
    """The largest over the roles, the lowest rank of equals."""
    instants = [instant for where, instant in steady if where is place]
    return max(instants, key=lambda instant: (instant.total_bytes, -instant.rank), default=None)


def _peaks(trial: Trial, steady: Peaks) -> Iterator[tuple[Place, Instant]]:
    """The steady peaks; where nobody watched within the phases, as on NVMe, what lay there at that phase's end."""
    for place in dict.fromkeys(place for place, _ in steady):
        peak = _largest_of(steady, place)
        if peak is not None and not peak.categories:
            rank = next(rank for rank in trial.ranks if rank.rank == peak.rank)
            peak = end_instant(rank, StepKind.STEADY, peak.phase, place)
        if peak is not None:
            yield place, peak


def _ranks(trial: Trial) -> Iterator[RankFigures]:
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


def _phases(trial: Trial, steady: Peaks) -> Iterator[PhaseFigures]:
    fullest = _largest_of(steady, Place.DEVICE)
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


def _steps(trial: Trial) -> Iterator[StepFigures]:
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


def _notes(trial: Trial) -> Iterator[tuple[int | None, str]]:
    yield from ((None, note) for note in trial.record.notes)
    yield from ((rank.rank, note) for rank in trial.ranks for note in rank.notes)
    yield from ((None, sentence) for sentence in side_sentences(trial))
    yield from ((None, text) for text in dict.fromkeys(text for rank in trial.ranks for text in rank.departures))
