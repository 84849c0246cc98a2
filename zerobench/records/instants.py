"""Memory of one rank at one instant, in categories that sum to the total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.roles import Role
from zerobench.config.trial.trial import Evidence
from zerobench.records.records import MemoryRow, PeakPart, RankRecord
from zerobench.records.trials import Trial

OPTIMIZER_STATES = (
    Category.MASTER_WEIGHTS,
    Category.FIRST_MOMENT,
    Category.SECOND_MOMENT,
    Category.OTHER_OPTIMIZER_STATES,
    Category.OPTIMIZER_STATES_ON_NVME,
)

GROUPS: Mapping[str, tuple[Category, ...]] = {
    "parameters": (Category.PARAMETERS,),
    "gradients": (Category.GRADIENTS,),
    "optimizer": OPTIMIZER_STATES,
    "buffers": (
        Category.REDUCE_BUFFERS,
        Category.ALL_GATHER_BUFFERS,
        Category.GATHERED_PARAMETERS,
        Category.PIPELINE_BUFFERS,
        Category.PINNED_BUFFERS,
        Category.STAGING,
    ),
    "activations": (Category.ACTIVATIONS,),
    "logits": (Category.LOGITS_AND_LOSS,),
    "temporaries": (Category.TEMPORARIES, Category.KERNEL_WORKSPACE),
    "small": (Category.INPUTS, Category.MODEL_BUFFERS, Category.WORKSPACES, Category.ALLOCATOR_ROUNDING),
    "process": (Category.REST_OF_PROCESS,),
    "unattributed": (Category.UNATTRIBUTED,),
}
"""Columns of the terminal's memory tables: each category but the total is in exactly one."""


@dataclass(frozen=True, slots=True)
class Instant:
    """Bytes in one place on one rank at one instant."""

    rank: int
    step: StepKind
    phase: Phase
    total_bytes: int
    categories: Mapping[Category, int]
    """Bytes by category; they sum to the total. Empty if the ledger could not observe this instant."""
    role: str = Role.WORKER.value
    """Role of the rank (RankRecord.role)."""
    parts: Mapping[Category, Sequence[PeakPart]] = field(default_factory=dict, compare=False)
    """Largest parts of the categories, if the record has them."""

    def largest_part(self, category: Category) -> PeakPart | None:
        """Largest part of a category; None if the record has none."""
        return next(iter(self.parts.get(category, ())), None)

    @property
    def rank_text(self) -> str:
        """`3`, or `0 server`, so that a server is not mistaken for a worker."""
        return rank_text(self.rank, self.role)

    def group_bytes(self, *names: str) -> int | None:
        """Total bytes of the columns `names`; None if the categories are unknown."""
        if not self.categories:
            return None
        return sum(self.categories.get(category, 0) for name in names for category in GROUPS[name])

    def exclude_predictor(self, evidence: Evidence) -> Instant:
        """Drop the resident memory of a process that only predicts."""
        predictor_bytes = self.categories.get(Category.REST_OF_PROCESS, 0)
        if not predictor_bytes or not evidence.is_predicted:
            return self
        categories: dict[Category, int] = {
            category: size for category, size in self.categories.items() if category is not Category.REST_OF_PROCESS
        }
        return replace(self, total_bytes=self.total_bytes - predictor_bytes, categories=categories)


def rank_text(rank: int, role: str) -> str:
    """Number of a rank, with its role unless it is a worker."""
    return str(rank) if role == Role.WORKER else f"{rank} {role}"


def _rows(rank: RankRecord, step: StepKind, phase: Phase, place: Place) -> list[MemoryRow]:
    """Rows of one place in one phase."""
    return [row for row in rank.memory if row.step is step and row.phase is phase and row.place is place]


def peak_bytes_of(row: MemoryRow) -> int:
    """Peak of a `total` row; if the phase was not observed, the live bytes at its end."""
    if row.at_peak_bytes is not None:
        return row.at_peak_bytes
    return row.live_bytes if row.own_peak_bytes is None else row.own_peak_bytes


def peak_instant(rank: RankRecord, step: StepKind, place: Place) -> Instant | None:
    """Instant of the largest total of `place` in `step` on this rank; None if not measured."""
    rows = [row for row in rank.memory if row.step is step and row.place is place]
    totals = [(peak_bytes_of(row), row.phase) for row in rows if row.category is Category.TOTAL]
    if not totals:
        return None
    total, phase = max(totals, key=itemgetter(0))
    rows = [row for row in rows if row.phase is phase]
    return Instant(rank.rank, step, phase, total, _peak_categories(rows), rank.role, _largest_parts(rows))


def phase_peak(rank: RankRecord, step: StepKind, phase: Phase, place: Place) -> Instant | None:
    """Peak of `place` within one phase on this rank; None if not measured."""
    rows = _rows(rank, step, phase, place)
    total = next((peak_bytes_of(row) for row in rows if row.category is Category.TOTAL), None)
    return (
        None
        if total is None
        else Instant(rank.rank, step, phase, total, _peak_categories(rows), rank.role, _largest_parts(rows))
    )


def _peak_categories(rows: Iterable[MemoryRow]) -> dict[Category, int]:
    return {
        row.category: row.at_peak_bytes
        for row in rows
        if row.category is not Category.TOTAL and row.at_peak_bytes is not None
    }


def _largest_parts(rows: Iterable[MemoryRow]) -> dict[Category, Sequence[PeakPart]]:
    return {row.category: row.largest for row in rows if row.largest}


def end_instant(rank: RankRecord, step: StepKind, phase: Phase, place: Place) -> Instant | None:
    """Live bytes in `place` at the end of a phase on this rank; None if not measured."""
    rows = _rows(rank, step, phase, place)
    total = next((row.live_bytes for row in rows if row.category is Category.TOTAL), None)
    parts: dict[Category, int] = {row.category: row.live_bytes for row in rows if row.category is not Category.TOTAL}
    return None if total is None else Instant(rank.rank, step, phase, total, parts, rank.role)


def peaks_by_rank(trial: Trial, step: StepKind, place: Place, role: str | None = None) -> dict[int, Instant]:
    """Peak instant of each rank that measured one; with `role`, only of ranks with that role."""
    ranks = (rank for rank in trial.ranks if role in {None, rank.role})
    peaks = ((rank.rank, peak_instant(rank, step, place)) for rank in ranks)
    return {rank: instant for rank, instant in peaks if instant is not None}


def largest_peak(trial: Trial, step: StepKind, place: Place, role: str | None = None) -> Instant | None:
    """Peak instant of the rank with the largest peak, or the lowest of equal ones; with `role`, only of ranks with that
    role.

    Without a role, show it with `Instant.rank_text`.
    """
    instants = peaks_by_rank(trial, step, place, role).values()
    return max(instants, key=lambda instant: (instant.total_bytes, -instant.rank), default=None)


def device_peak_bytes(trial: Trial) -> int | None:
    """Peak of the device's allocator over all ranks, phases and steps, start-up included.

    This figure must fit. The memory table has steady state and start-up separately.
    """
    ledger = [i.total_bytes for step in StepKind for i in peaks_by_rank(trial, step, Place.DEVICE).values()]
    allocator = [row.peak_allocated_bytes for rank in trial.ranks for row in rank.device_memory]
    return max(ledger + allocator, default=None)


def host_peak_bytes(trial: Trial) -> int | None:
    """Largest host memory of one rank over all ranks, phases and steps.

    From the host's `total` rows if the ledger has them; else the kernel's peak of the process (VmHWM), which is not
    used for `emulated` and `simulated`, since it is not the trial's. For a script that was watched from outside: the
    kernel's peak of its largest rank, or of its largest process if none is known to be a rank.
    """
    ledger = [i.total_bytes for step in StepKind for i in peaks_by_rank(trial, step, Place.HOST).values()]
    if ledger or trial.spec.evidence.is_forked:
        largest = max(ledger, default=None)
        return None if largest is None or largest < 0 else largest  # below 0: allocated on a CPU rank, never touched
    rows = [row for rank in trial.ranks for row in rank.process_memory]
    watched = [process for host in trial.record.host for process in host.processes]
    seen = [process for process in watched if process.rank is not None] or watched
    peaks = [row.peak_rss_bytes or row.rss_bytes for row in rows] or [process.peak_rss_bytes for process in seen]
    return max(peaks, default=None)


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Model states of one rank in steady state, in all places together (device, host and NVMe)."""

    rank: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    role: str = Role.WORKER.value

    @property
    def rank_text(self) -> str:
        """`3`, or `0 server`."""
        return rank_text(self.rank, self.role)

    @property
    def total_bytes(self) -> int:
        """Parameters, gradients and optimizer states."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


def model_states(rank: RankRecord) -> ModelStates | None:
    """Model states of one rank: gradients live at the end of backward, the rest at the end of the step.

    After the step gradients are freed; before it they are complete (ZeRO paper, arXiv 1910.02054, section 3.1), or
    reduced: DeepSpeed's stage 1 has all during backward, and at its end only those of the rank's partition. Temporarily
    gathered parameters are buffers and do not count. If a step is a single phase, gradients are those that persist
    between steps, as in TensorFlow's server. None if steady state was not measured, or gradients have no category.
    """
    backward = [r for r in rank.memory if r.step is StepKind.STEADY and r.phase is Phase.BACKWARD]
    step = [r for r in rank.memory if r.step is StepKind.STEADY and r.phase is Phase.STEP]
    with_gradients = backward or [row for row in step if row.category is Category.GRADIENTS]
    if not with_gradients or not step:
        return None
    return ModelStates(
        rank.rank,
        parameters_bytes=_live(step, (Category.PARAMETERS,)),
        gradients_bytes=_live(with_gradients, (Category.GRADIENTS,)),
        optimizer_bytes=_live(step, OPTIMIZER_STATES),
        role=rank.role,
    )


def _live(rows: Iterable[MemoryRow], categories: tuple[Category, ...]) -> int:
    return sum(row.live_bytes for row in rows if row.category in categories)


def largest_model_states(trial: Trial, role: str | None = None) -> ModelStates | None:
    """Model states of the rank with most, or the lowest of equal ones; with `role`, only of ranks with that role."""
    ranks = (rank for rank in trial.ranks if role in {None, rank.role})
    known = [states for rank in ranks if (states := model_states(rank)) is not None]
    return max(known, key=lambda states: (states.total_bytes, -states.rank), default=None)
