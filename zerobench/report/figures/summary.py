"""What one trial comes to as a whole: how it ended, how fast it was, what it took and what there was to take."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, Status, StepKind
from zerobench.config.hardware.hardware import Gpu, device_capacity_bytes
from zerobench.config.trial.trial import Evidence, Offload, TrialSpec
from zerobench.estimate.time.predicted_speed import PredictedStep, gpu_of, predicted_step
from zerobench.records.instants import device_peak_bytes, host_peak_bytes
from zerobench.records.records import Failure, TrialRecord
from zerobench.records.trials import Trial, all_ranks_ran, completed, is_whole, num_params
from zerobench.report.figures.capacity import device_needs, host_bytes_per_node, total_needs
from zerobench.report.figures.fit import Fit, Space
from zerobench.report.figures.nvml_view import devices_of, nvml_peak_bytes
from zerobench.report.figures.parity import losses
from zerobench.report.figures.speed import Speed, nvme_bytes_per_s, speed_of, timed_tokens, why_void
from zerobench.report.words.column_units import plain
from zerobench.report.words.labels import setting_text


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second and rank."""

    tokens_per_s: float
    interval: tuple[float, float] | None = None
    """What it lies between in eight of ten cases; None where it was timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Bytes, seconds and losses of one trial; None: not available.

    Speed and losses are those of completed trials, device and host peaks those of trials whose work was played whole:
    what a failed one got to before it ended is in its records. What NVML saw stands for every trial that it watched.
    """

    spec: TrialSpec
    config_hash: str
    num_params: int | None
    status: Status
    reason: str | None
    rule: str | None
    is_whole: bool
    """Whether its memory is that of all the work: it completed, or did not fit and was played again with room."""
    why: str | None
    """Why it has no figures, in one line; None where it completed."""
    started_at_s: float | None
    ended_at_s: float | None
    nodes: Sequence[str]
    job: str | None
    """Slurm's id of the job that ran it."""
    speed: Speed | None
    """Its steps are left out: `timed_s` has what is needed of them."""
    timed_s: Sequence[float]
    """Seconds of the timed steps with the full batch, of the slowest rank in each."""
    timed_tokens: int
    """Of all timed steps."""
    is_alone: bool
    """Whether one rank ran alone of many."""
    void: str | None
    """Why the throughput is void."""
    flops_formulas: Sequence[str]
    device_peak_bytes: int | None
    nvml_peak_bytes: int | None
    host_peak_bytes: int | None
    sampled_host_bytes: int | None
    """The most that all processes of a node were seen to hold resident; None where nobody sampled them."""
    nvme_held_bytes: int | None
    """What lies on NVMe at the end of a phase on the rank that has most there."""
    nvme_read_bytes_per_s: float | None
    nvme_write_bytes_per_s: float | None
    loss_first: float | None
    loss_last: float | None
    predicted_step: PredictedStep
    settings: str
    """What the sweep says to DeepSpeed, and what no key column says of a trial."""
    device_name: str | None
    is_on_cpu: bool
    """Whether no rank had a device of its own, so that none limits them."""
    gpu: str | None
    """The catalogue's name."""
    capacity_bytes: int | None
    """Memory of one device."""
    device_needs: Mapping[StepKind, int]
    """What one GPU needs at start-up, and in steps."""
    host_needed_bytes: int | None
    host_capacity_bytes: int | None

    @property
    def device_needed_bytes(self) -> int | None:
        """The larger of the device's needs: what has to fit."""
        return max(self.device_needs.values(), default=None)

    @property
    def is_completed(self) -> bool:
        """Whether the trial ran to its end, so that its figures are those of the work that was asked."""
        return self.status is Status.COMPLETED

    @property
    def is_measured(self) -> bool:
        """Whether its figures were seen on real ranks."""
        return self.spec.evidence is Evidence.MEASURED

    @property
    def tokens_per_s(self) -> float | None:
        """Of all ranks together."""
        return None if self.speed is None else self.speed.tokens_per_s

    @property
    def took_s(self) -> float | None:
        """Seconds from the start of the trial to its end."""
        known = self.started_at_s is not None and self.ended_at_s is not None
        return (self.ended_at_s or 0) - (self.started_at_s or 0) if known else None

    @property
    def share_of_capacity(self) -> float | None:
        """The device's peak over its memory."""
        if self.device_peak_bytes is None or not self.capacity_bytes:
            return None
        return self.device_peak_bytes / self.capacity_bytes

    @property
    def offload(self) -> str:
        """The farthest place that a state is offloaded to, or `none`."""
        return next((place.value for place in (Offload.NVME, Offload.CPU) if self.offloads(place)), Offload.NONE.value)

    @property
    def rate(self) -> Rate | None:
        """Tokens per second and rank: as timed, or of a predicted step as expected."""
        tokens, expected = self.spec.tokens_per_gpu, self.predicted_step.expected
        if self.tokens_per_s is not None:
            return Rate(self.tokens_per_s / self.spec.world_size)
        if expected is None:
            return None
        return Rate(tokens / expected.step_s, (tokens / expected.high_s, tokens / expected.low_s))

    @property
    def fit(self) -> Fit:
        """Its need of one GPU and of one node; the host of a measured trial held it, whatever it has."""
        refused = self.status is Status.OUT_OF_DEVICE_MEMORY
        device = Space(self.device_needed_bytes, self.capacity_bytes, refused)
        host = Space(self.host_needed_bytes, self.host_capacity_bytes)
        return Fit(device, host, self.offloads() and not self.is_measured)

    def offloads(self, *places: Offload) -> bool:
        """Whether optimizer states or parameters are offloaded to one of `places`; to any without them."""
        return bool(self.spec.offloaded_to & set(places or Offload))


def summary_of(trial: Trial) -> Summary:
    """The summary of `trial`."""
    record, gpu, speed = trial.record, gpu_of(trial), speed_of(trial)
    curve = losses(trial) if completed(trial) else ()
    read, written = nvme_bytes_per_s(trial)
    return Summary(
        spec=trial.spec,
        config_hash=record.config_hash,
        num_params=num_params(trial),
        status=record.status,
        reason=record.reason,
        rule=record.rule,
        is_whole=is_whole(trial),
        why=None if completed(trial) else why_without_figures(record),
        started_at_s=record.started_at_s,
        ended_at_s=record.ended_at_s,
        nodes=[plain(name) for name in record.nodes],
        job=record.job and plain(record.job),
        speed=speed and replace(speed, steps=()),
        timed_s=array("d", [step.step_s for step in speed.steps] if speed else []),
        timed_tokens=sum(timed_tokens(trial)),
        is_alone=not all_ranks_ran(trial),
        void=why_void(trial),
        flops_formulas=tuple(dict.fromkeys(rank.flops_formula for rank in trial.ranks if rank.flops_formula)),
        device_peak_bytes=device_peak_bytes(trial) if is_whole(trial) else None,
        nvml_peak_bytes=nvml_peak_bytes(trial),
        host_peak_bytes=host_peak_bytes(trial) if is_whole(trial) else None,
        sampled_host_bytes=max((host.peak_rss_bytes or 0 for host in record.host), default=0) or None,
        nvme_held_bytes=_nvme_held_bytes(trial),
        nvme_read_bytes_per_s=read,
        nvme_write_bytes_per_s=written,
        loss_first=curve[0] if curve else None,
        loss_last=curve[-1] if curve else None,
        predicted_step=predicted_step(trial),
        settings=_settings(trial.spec),
        device_name=trial.ranks[0].device_name if trial.ranks else None,
        is_on_cpu=all(rank.device_type == "cpu" for rank in trial.ranks),
        gpu=None if gpu is None else gpu.name,
        capacity_bytes=_capacity_bytes(trial, gpu),
        device_needs=total_needs(device_needs(trial)),
        host_needed_bytes=host_bytes_per_node(trial),
        host_capacity_bytes=trial.spec.prediction.host_memory_bytes,
    )


def _nvme_held_bytes(trial: Trial) -> int | None:
    rows = (row for rank in trial.ranks for row in rank.memory)
    held = [row.live_bytes for row in rows if row.place is Place.NVME and row.category is Category.TOTAL]
    return max(held, default=None)


def _settings(spec: TrialSpec) -> str:
    """What the sweep says to DeepSpeed (`reduce_bucket_size=5e8`, the file that it names), how the batch grows, and
    what no other column says of a trial: the drive that it swaps to, and which rank is predicted, if not the first.
    """
    settings = [f"{key.rpartition('.')[2]}={setting_text(spec, key)}" for key in sorted(spec.ds_config)]
    ramp = f"ramp={spec.batch_ramp}" if spec.batch_ramp else ""
    drive = f"nvme={spec.nvme_path}" if spec.nvme_path else ""
    rank = "all ranks" if spec.prediction.all_ranks else f"rank{spec.prediction.rank}" if spec.prediction.rank else ""
    return plain(" ".join(part for part in [*settings, spec.ds_config_file or "", ramp, drive, rank] if part))


def _capacity_bytes(trial: Trial, gpu: Gpu | None) -> int | None:
    """Memory that CUDA hands out on the smallest device that the trial ran on; of a prediction, the catalogue's.

    Older records have NVML's total alone, of which the catalogue knows the part that the driver keeps.
    """
    if not trial.spec.evidence.needs_device:
        return None if gpu is None else gpu.capacity_bytes
    capacities = [rank.device_capacity_bytes for rank in trial.ranks if rank.device_capacity_bytes is not None]
    if capacities:
        return min(capacities)
    devices = [(device.name, device.total_bytes) for device in devices_of(trial)]
    return min((device_capacity_bytes(name, total) for name, total in devices if total is not None), default=None)


def why_without_figures(record: TrialRecord) -> str:
    """Why the trial of `record` has no figures."""
    text = record.reason or (record.failure.message if record.failure else "no reason recorded")
    rule = f" (rule {record.rule})" if record.rule else ""
    detail = _detail(record.failure) if record.failure and record.status is not Status.SKIPPED else ""
    return plain(f"{text}{rule}{detail}")


def _detail(failure: Failure) -> str:
    """Where it happened and the bytes it was about, as far as they are known."""
    step = -1 if failure.step_index is None else failure.step_index  # below zero is start-up
    parts = [
        (failure.rank is not None, f"rank {failure.rank}"),
        (failure.phase is not None, str(failure.phase)),
        (step >= 0, f"step {step + 1}"),
        (failure.bytes_asked is not None, f"requested {format_bytes(failure.bytes_asked)}"),
        (failure.bytes_free is not None, f"free {format_bytes(failure.bytes_free)}"),
        (bool(failure.stacks), f"stacks of {len(failure.stacks)} ranks in the record"),
    ]
    known = [text for is_known, text in parts if is_known]
    return f" ({', '.join(known)})" if known else ""
