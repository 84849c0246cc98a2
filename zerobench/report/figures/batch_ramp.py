"""Memory and speed of a batch that grows: peak, step time and tokens per second at each size.

The sizes of a ramped trial stand beside the one size of the trial that does the same work with a fixed batch. Figures
of the whole trial (speed.py) are those of the full batch, which both have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from zerobench.config.trial.trial import TrialSpec
from zerobench.records.records import RankRecord
from zerobench.records.trials import Trial, all_ranks_ran, completed, workers
from zerobench.report.figures.speed import slowest_steps, timed_tokens
from zerobench.report.figures.stats import median


@dataclass(frozen=True)
class BatchFigures:
    """One size of a trial's global batch. None: not available."""

    tokens: int
    """Tokens of a step, all ranks together."""
    first_step: int
    last_step: int
    timed_steps: int
    step_s: float | None
    """Median over the timed steps, the slowest rank of each."""
    tokens_per_s: float | None
    """Over all ranks; None for one rank alone of many, which nobody waited for."""
    peak_bytes: int | None
    """Peak of the device, in the last step of this size that the ledger watched, on the rank with the largest."""


class HasSpec(Protocol):
    """A trial, whatever came of it."""

    @property
    def spec(self) -> TrialSpec:
        """As it was asked for."""
        ...


T = TypeVar("T", bound=HasSpec)


def work_of(trial: HasSpec) -> str:
    """Hash of the work that a ramped trial shares with the one whose batch is fixed: that one's config_hash."""
    return trial.spec.model_copy(update={"batch_ramp": None}).config_hash


def ramped_and_fixed(trials: Sequence[T]) -> list[T]:
    """The ramped ones of `trials` and those that do the same with a fixed batch, in their order."""
    ramped = {work_of(trial) for trial in trials if trial.spec.batch_ramp is not None}
    return [trial for trial in trials if ramped and work_of(trial) in ramped]


def batch_figures(trial: Trial) -> list[BatchFigures]:
    """Each size of the trial's batch, in the order in which it came; empty where the ranks did not note any."""
    rank = next(iter(workers(trial) or trial.ranks), None)
    if rank is None or not completed(trial):
        return []
    return [_size_figures(trial, rank, tokens) for tokens in dict.fromkeys(batch.tokens for batch in rank.batches)]


def _size_figures(trial: Trial, rank: RankRecord, tokens: int) -> BatchFigures:
    at = [index for index, batch in enumerate(rank.batches) if batch.tokens == tokens]
    timed = zip(slowest_steps(trial), timed_tokens(trial), strict=False)
    times = [time.step_s for time, size in timed if size == tokens]
    seconds = median(times)
    return BatchFigures(
        tokens=tokens,
        first_step=at[0],
        last_step=at[-1],
        timed_steps=len(times),
        step_s=seconds,
        tokens_per_s=tokens / seconds if seconds and all_ranks_ran(trial) else None,
        peak_bytes=max((peak for record in trial.ranks for peak in _last_peak(record, tokens)), default=None),
    )


def _last_peak(rank: RankRecord, tokens: int) -> Sequence[int]:
    """The rank's peak in its last memory step of this size."""
    steps = [batch for batch in rank.batches if batch.kind == "memory" and batch.tokens == tokens]
    return [step.device_peak_bytes for step in steps[-1:] if step.device_peak_bytes is not None]
