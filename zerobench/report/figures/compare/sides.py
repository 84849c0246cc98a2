"""One run as a comparison sees it: its trials by the work they did, each with the repeats of it, and little of each.

Records pass through one at a time, and only totals, categories at the peaks and step times stay of them, so that runs
of thousands of trials are compared within the memory of a laptop.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerobench.common.grouped import grouped
from zerobench.common.vocabulary import Place, StepKind
from zerobench.config.trial.trial import TrialSpec
from zerobench.records import store
from zerobench.records.instants import Instant, largest_peak
from zerobench.records.trials import Trial, completed, refuse_impossible_values, uses_dropout
from zerobench.report.figures.parity import grad_norms, losses
from zerobench.report.figures.speed import full_batch_values, slowest_steps, void_reason

Where = tuple[str, StepKind]
"""A memory (a Place's value, RESERVED or RESIDENT), in the first step with start-up or in a steady one."""

LEDGER = (Place.DEVICE, Place.HOST, Place.NVME)
"""Places whose tensors are counted. A trial with a ledger that has no row of one of them holds nothing there."""

RESERVED = "reserved"
"""GPU memory that torch's allocator holds, tensors or not: what has to fit."""

USED = "used"
"""GPU memory in use by NVML, less what was there before the trial: context, kernels and NCCL are in it."""

RESIDENT = "resident"
"""Memory of a CPU rank, by the kernel: device and host in one, where the ledger's host rows are what is left of it and
may be below 0 (memory that was allocated and never touched)."""

Work = tuple[str, str, str | None, range]
"""Key of the same trial in two runs: config_hash, evidence, simulated GPU, the ranks that were played."""

NOT_ENDED = "not ended"
"""Status of a planned trial without a record."""


@dataclass(frozen=True)
class Repeat:
    """One trial of a run, in a process tree of its own."""

    trial_id: str
    """Its folder's name, which an older version may have made of the spec in another way."""
    spec: TrialSpec
    status: str
    """Status of a record, or NOT_ENDED."""
    reason: str | None = None
    peaks: Mapping[Where, Instant] = field(default_factory=dict)
    """The peak of the rank that has the largest; empty unless the trial completed."""
    step_times_s: tuple[float, ...] = ()
    """The timed steps, each as its slowest rank took it; empty unless the trial completed."""
    void: str | None = None
    """Reason why the times are no measure of the training, where they are not."""
    losses: tuple[float, ...] = ()
    """Loss of each step; empty where each process draws its own (dropout), or saw no loss of the whole batch."""
    grad_norms: tuple[float | None, ...] = ()
    """The same of the gradients' global norms; None for a step in which nobody computed it."""
    devices: frozenset[str] = frozenset()
    """Names of the devices that ranks ran on."""

    @property
    def completed(self) -> bool:
        return self.status == "completed"


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    run: store.Run
    repeats: Mapping[Work, Sequence[Repeat]]
    """Repeats by the work done, in the plan's order."""

    @property
    def devices(self) -> frozenset[str]:
        """Names of all devices that ranks ran on; a processor's is among them."""
        return frozenset(name for group in self.repeats.values() for repeat in group for name in repeat.devices)


def side_of(run: store.Run) -> Side:
    """The trials of `run`, those that have not ended among them.

    Raises UserError: a record is torn, corrupt, newer than this version, or holds an impossible value.
    """
    with refuse_impossible_values(run.folder.trials):
        return Side(run, grouped(_repeats(run), lambda repeat: work_of(repeat.spec)))


def _repeats(run: store.Run) -> Iterator[Repeat]:
    for entry in run.plan.trials:
        if run.folder.trial(entry.trial_id).record.exists():
            yield repeat_of(run.trial(entry.trial_id))
        elif run.folder.trial(entry.trial_id).spec.exists():
            yield Repeat(entry.trial_id, run.spec(entry.trial_id), NOT_ENDED)


def work_of(spec: TrialSpec) -> Work:
    """Key that a trial shares with the same one of another run; which folder is swapped to is not in it.

    The hash is that of the spec as this version reads it, so that runs of two versions of zerobench meet.
    """
    return spec.config_hash, spec.evidence.value, spec.prediction.gpu, spec.played_ranks


def work_with_file_named(spec: TrialSpec) -> Work:
    """The same, with a DeepSpeed file in whatever folder: another checkout of a repository has another path."""
    name = None if spec.ds_config_file is None else Path(spec.ds_config_file).name
    return work_of(spec.model_copy(update={"ds_config_file": name}))


def work_without_configuration(spec: TrialSpec) -> Work:
    """The same, whatever DeepSpeed configuration it runs under."""
    return work_of(spec.model_copy(update={"ds_config_file": None, "ds_config": {}}))


def repeat_of(trial: Trial) -> Repeat:
    """Figures of `trial` that a comparison keeps."""
    record, ran = trial.record, completed(trial)
    steps = full_batch_values(trial, slowest_steps(trial)) if ran else ()
    is_same = ran and not uses_dropout(trial)
    return Repeat(
        trial_id=record.trial_id,
        spec=trial.spec,
        status=record.status.value,
        reason=record.reason or (record.failure.message if record.failure else None),
        peaks=_peaks(trial) if ran else {},
        step_times_s=tuple(step.step_s for step in steps if step.step_s > 0),
        void=void_reason(trial),
        losses=tuple(losses(trial)) if is_same else (),
        grad_norms=tuple(grad_norms(trial)) if is_same else (),
        devices=frozenset(rank.device_name for rank in trial.ranks if trial.spec.evidence.needs_device),
    )


def _peaks(trial: Trial) -> dict[Where, Instant]:
    """Return the largest peak by place and step."""
    held = {(place.value, step): largest_peak(trial, step, place) for place in LEDGER for step in StepKind}
    peaks = {where: peak.exclude_predictor(trial.spec.evidence) for where, peak in held.items() if peak is not None}
    for where, instant in _driver_peaks(trial) if trial.spec.evidence.needs_device else ():
        if where not in peaks or instant.total_bytes > peaks[where].total_bytes:
            peaks[where] = instant
    return peaks


def _driver_peaks(trial: Trial) -> Iterator[tuple[Where, Instant]]:
    """Memory by rank and phase that the allocator had reserved, that NVML read, and that a CPU rank had resident,
    without categories. Of a prediction it would be the process that predicts.
    """
    for rank in trial.ranks:
        before_bytes = None if rank.context is None else rank.context.before_bytes
        for row in rank.device_memory:
            yield (RESERVED, row.step), Instant(rank.rank, row.step, row.phase, row.peak_reserved_bytes, {})
            if row.nvml_used_bytes is not None and before_bytes is not None:
                used_bytes = row.nvml_used_bytes - before_bytes
                yield (USED, row.step), Instant(rank.rank, row.step, row.phase, used_bytes, {})
        for process in rank.process_memory if rank.device_type == "cpu" else ():
            resident_bytes = process.peak_rss_bytes or process.rss_bytes
            yield (RESIDENT, process.step), Instant(rank.rank, process.step, process.phase, resident_bytes, {})
