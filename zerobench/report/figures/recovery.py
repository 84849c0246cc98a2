"""Checkpoints and faults, derived from what both launches of a trial recorded: bytes, seconds, extra memory, losses.

A save or load is as slow as its slowest rank, and takes as much more memory as the rank that takes most. Losses after
the resume are held against those of the steps that nothing interrupted: the trial's own first launch where it went on
to its end, else the same trial without the fault.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zerobench.common.grouped import grouped
from zerobench.config.derived.checkpoint_size import checkpoint_bytes
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.records import CheckpointTransfer, Recovery
from zerobench.records.trials import Trial, completed, num_trained
from zerobench.report.figures.parity import largest_difference, losses
from zerobench.report.figures.stats import median
from zerobench.report.words.column_units import MISSING


@dataclass(frozen=True)
class Transfers:
    """The saves of a trial, or its load. None: not available."""

    size_bytes: int
    """Size of one checkpoint, all files of all ranks."""
    seconds: float
    """Median over the saves."""
    host_bytes: int | None
    """The most resident memory that one rank took more within it; of CPU ranks also what a GPU would hold."""
    device_bytes: int | None
    """The most that torch's allocator handed out more on one GPU."""

    @property
    def bytes_per_s(self) -> float | None:
        """Size of the checkpoint over the seconds, whoever wrote or read how much of it."""
        return self.size_bytes / self.seconds if self.seconds else None


@dataclass(frozen=True)
class CheckpointFigures:
    """Costs of a trial's checkpoints, and what they were good for. None: not available."""

    save: Transfers | None
    formula_bytes: int | None
    """Size by closed form (config/derived/checkpoint_size.py)."""
    load: Transfers | None
    world_size: int
    """Ranks of the second launch."""
    convert_s: float | None
    """Making the universal checkpoint."""
    loss_distance: float | None
    """Largest difference of a loss after the resume from the uninterrupted one; 0 is equal to the bit."""
    steps_lost: int | None
    """Steps that were done when the rank died and had to be done again; None without a fault."""
    recover_s: float | None
    """From the rank's death to the end of the first step that had not been done; None without a fault."""
    restart_s: float | None
    """From the end of the first launch to the end of the first step of the second."""


def resumed(trial: Trial, uninterrupted: Sequence[float]) -> CheckpointFigures | None:
    """Figures of the checkpoints of `trial`; None where it saved nothing, or did not end."""
    recovery = trial.record.recovery if completed(trial) else None
    if recovery is None:
        return None
    saves = [transfer for rank in trial.ranks for transfer in rank.checkpoints if transfer.kind == "save"]
    count, ends = num_trained(trial), recovery.steps_ended_at_s
    return CheckpointFigures(
        save=_transfers(saves),
        formula_bytes=None if count is None else checkpoint_bytes(trial.spec, count),
        load=_transfers(recovery.loads),
        world_size=recovery.world_size,
        convert_s=recovery.convert_s,
        loss_distance=distance(recovery, uninterrupted),
        steps_lost=None if recovery.killed_at_s is None else recovery.steps_done - recovery.from_step,
        recover_s=_recover_s(recovery),
        restart_s=ends[0] - recovery.first_ended_at_s if ends else None,
    )


def uninterrupted_losses(trial: Trial, trials: Iterable[Trial]) -> Sequence[float]:
    """The losses of the same work with no fault in it: the trial's own, or those of one of `trials`; else none."""
    if not _has_fault(trial.spec):
        return losses(trial)
    work = _work(trial.spec)
    others = (
        candidate
        for candidate in trials
        if not _has_fault(candidate.spec) and _work(candidate.spec) == work and completed(candidate)
    )
    return next((curve for other in others if (curve := losses(other))), ())


def _work(spec: TrialSpec) -> tuple[str, int]:
    """Hash of the training, whatever is saved of it."""
    return spec.model_copy(update={"checkpoint": None}).config_hash, spec.steps.total


def _has_fault(spec: TrialSpec) -> bool:
    return spec.checkpoint is not None and spec.checkpoint.fault is not None


def _transfers(transfers: Sequence[CheckpointTransfer]) -> Transfers | None:
    if not transfers:
        return None
    by_step = grouped(transfers, lambda transfer: transfer.step)
    seconds = median([max(transfer.seconds for transfer in same) for same in by_step.values()])
    return Transfers(
        size_bytes=transfers[-1].size_bytes,
        seconds=seconds or 0.0,
        host_bytes=_most((transfer.rss_before_bytes, transfer.rss_peak_bytes) for transfer in transfers),
        device_bytes=_most((transfer.device_before_bytes, transfer.device_peak_bytes) for transfer in transfers),
    )


def _most(figures: Iterable[tuple[int | None, int | None]]) -> int | None:
    more = [peak - before for before, peak in figures if before is not None and peak is not None]
    return max(0, *more) if more else None


def loss_distance(trial: Trial, trials: Iterable[Trial]) -> float | None:
    """Distance of the losses of a trial that was resumed from those of the same work without a fault; None where it was
    not, or `trials` have none to compare with.
    """
    recovery = trial.record.recovery
    return None if recovery is None else distance(recovery, uninterrupted_losses(trial, trials))


def distance(recovery: Recovery, uninterrupted: Sequence[float]) -> float | None:
    """Largest difference of the losses after the resume; None where there is none to compare with."""
    start = recovery.from_step
    return largest_difference(recovery.losses[start:], uninterrupted[start:])


def _recover_s(recovery: Recovery) -> float | None:
    first_new = recovery.steps_done - recovery.from_step
    if recovery.killed_at_s is None or first_new >= len(recovery.steps_ended_at_s):
        return None
    return recovery.steps_ended_at_s[first_new] - recovery.killed_at_s


def distance_text(distance: float | None) -> str:
    """`0` where losses are equal to the bit, else two digits."""
    return MISSING if distance is None else "0" if distance == 0 else f"{distance:.1e}"
