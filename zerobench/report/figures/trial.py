"""All figures of one trial, which plans, tables, charts, headlines and exports read.

zerobench.report.figures.make makes them, once; they are small enough to be held of each of a hundred thousand trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zerobench.common.vocabulary import Place, Status, StepKind
from zerobench.config.derived.roles import Role
from zerobench.config.trial.trial import Evidence, Offload, TrialSpec
from zerobench.estimate.clock.step import ExpectedStep
from zerobench.estimate.time.bound import StepBound
from zerobench.records.instants import Instant
from zerobench.records.trials import Trial
from zerobench.report.figures.batch_ramp import BatchFigures
from zerobench.report.figures.capacity import DeviceNeed, largest_need, total_needs, when_needed
from zerobench.report.figures.fit import Fit, Space
from zerobench.report.figures.host_parameters import Holder
from zerobench.report.figures.name import TrialName
from zerobench.report.figures.parity import Parity
from zerobench.report.figures.pipeline import StageRow
from zerobench.report.figures.recovery import CheckpointFigures
from zerobench.report.figures.server import Side
from zerobench.report.figures.speed import Rate, Speed
from zerobench.report.figures.standing import HeldShare
from zerobench.report.figures.strategy_figures import SideFigures
from zerobench.report.figures.trial_parts import Note, PhaseFigures, RankFigures, StepFigures, largest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """Bytes, seconds and losses of one trial; None: not available.

    Speed and losses are those of completed trials, device and host peaks those of trials that are whole. NVML's figures
    stand for every trial that it watched.
    """

    trial: Trial
    """Its record. A run's figures hold none of its ranks: they are read again where a table asks for them."""
    spec: TrialSpec
    run_id: str
    trial_id: str
    config_hash: str
    label: str = ""
    """Its name in tables, which depends on the other trials."""
    parity: Parity | None = None
    """Losses and gradients against its reference's, which is another trial."""
    num_params: int | None
    status: Status
    reason: str | None
    rule: str | None
    is_whole: bool
    """True if its memory is that of all the work: it completed, or did not fit and was played again with room."""
    why: str | None
    """Reason why it has no figures, in one line; None where it completed."""
    started_at_s: float | None
    ended_at_s: float | None
    nodes: Sequence[str]
    job: str | None
    """Slurm's id of the job that ran it."""
    speed: Speed | None
    """Without per-step times; see `timed_s`."""
    timed_s: Sequence[float]
    """Seconds of the timed steps with the full batch, of the slowest rank in each."""
    timed_tokens: int
    """Tokens of all timed steps."""
    is_alone: bool
    """True if one rank ran alone of many."""
    void: str | None
    """Reason why the throughput is void."""
    flops_formulas: Sequence[str]
    device_peak_bytes: int | None
    nvml_peak_bytes: int | None
    host_peak_bytes: int | None
    sampled_host_bytes: int | None
    """Largest resident memory of all processes of a node; None without samples."""
    nvme_held_bytes: int | None
    """NVMe bytes at the end of a phase, on the rank that has most."""
    nvme_read_bytes_per_s: float | None
    nvme_write_bytes_per_s: float | None
    loss_first: float | None
    loss_last: float | None
    bound: StepBound | None
    """Lower bound of a predicted step."""
    expected: ExpectedStep | None
    """Expected time of a predicted step."""
    expected_mfu: float | None
    """Model FLOP/s in the expected step over the GPU's peak, 0 to 1."""
    settings: str
    """DeepSpeed keys of the sweep, and what no key column says of a trial."""
    device_name: str | None
    is_on_cpu: bool
    """True if no rank had a device of its own, so that none limits them."""
    gpu: str | None
    """The catalogue's name."""
    needs: Mapping[StepKind, DeviceNeed]
    """Memory that one GPU needs at start-up, and in steps, each in parts."""
    fit: Fit
    """Needs of one GPU and of one node against the memory there is."""
    has_trace: bool
    """True if a rank recorded the order in which the engine issued its work, which is replayed."""
    has_allocator: bool
    """True if a rank's allocator was watched or played: else its slack is not in the need."""
    roles: Sequence[str]
    steady: Sequence[tuple[Place, Instant]]
    """In each place, of each role, the steady peak of the rank where it is largest."""
    peaks: Sequence[tuple[Place, Instant]]
    """The largest of each place; where nobody watched within phases, as on NVMe, what lay there at that phase's end."""
    ranks: Sequence[RankFigures]
    phases: Sequence[PhaseFigures]
    """Phases of the rank with the largest device peak, in every place."""
    steps: Sequence[StepFigures]
    notes: Sequence[Note]
    sides: Sequence[Side]
    """Sides of a parameter server."""
    stages: Sequence[StageRow]
    """Stages of a pipeline."""
    batches: Sequence[BatchFigures]
    holders: Sequence[Holder]
    """Holders of host memory, where states are offloaded."""
    standing: Sequence[HeldShare]
    """Memory held at the failed allocation."""
    compared: Sequence[SideFigures]
    """Its sides as they are compared with a single process, of a measured trial."""
    resumed: CheckpointFigures | None
    """Cost of its checkpoints; without the distance of its losses, which takes another trial."""

    @property
    def name(self) -> TrialName:
        """The trial as every table names it."""
        return TrialName(
            self.trial_id, self.label, self.spec.evidence.value, self.gpu, self.status.value, self.is_believed
        )

    @property
    def marked_label(self) -> str:
        """Its name in charts, marked where its memory is not believed."""
        return self.label if self.is_believed else f"! {self.label}"

    @property
    def is_believed(self) -> bool:
        """False if its losses or gradients differ from its reference's."""
        return self.parity is None or self.parity.agrees

    @property
    def is_completed(self) -> bool:
        """True if the trial ran to its end, so that its figures are those of the work that was asked."""
        return self.status is Status.COMPLETED

    @property
    def is_measured(self) -> bool:
        """True if its figures were seen on real ranks."""
        return self.spec.evidence is Evidence.MEASURED

    @property
    def need(self) -> DeviceNeed | None:
        """The larger of the needs: what has to fit."""
        return largest_need(self.needs)

    @property
    def need_moments(self) -> str:
        """Moment of the larger need, and the size of the other: `at start-up, steps 59.56 GiB`; empty if not known."""
        return when_needed(total_needs(self.needs))

    @property
    def device(self) -> Space:
        """One GPU's memory."""
        return self.fit.device

    @property
    def host(self) -> Space:
        """One node's memory."""
        return self.fit.host

    @property
    def fits(self) -> bool:
        """True if device and host hold it, as far as is known."""
        return self.fit.fits

    @property
    def has_room(self) -> bool:
        """True if device and host hold it with room to spare."""
        return self.fit.has_room

    @property
    def room(self) -> float:
        """The free share of the scarcer of device and host memory; -1 if not known of the device."""
        return self.fit.room

    @property
    def device_needed_bytes(self) -> int | None:
        return self.device.needed_bytes

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of one device."""
        return self.device.capacity_bytes

    @property
    def host_needed_bytes(self) -> int | None:
        return self.host.needed_bytes

    @property
    def host_capacity_bytes(self) -> int | None:
        return self.host.capacity_bytes

    @property
    def scaled_bytes(self) -> int | None:
        """Need of the scarcer memory, scaled to the device's: one figure to compare with one capacity."""
        capacity_bytes = self.device.capacity_bytes
        return None if not self.needs or capacity_bytes is None else round((1 - self.room) * capacity_bytes)

    @property
    def share_of_capacity(self) -> float | None:
        """The device's peak over its memory."""
        if self.device_peak_bytes is None or not self.capacity_bytes:
            return None
        return self.device_peak_bytes / self.capacity_bytes

    @property
    def tokens_per_s(self) -> float | None:
        """Measured rate of all ranks together."""
        return None if self.speed is None else self.speed.tokens_per_s

    @property
    def expected_tokens_per_s(self) -> float | None:
        """Expected rate of all ranks together."""
        return None if self.expected is None else self.spec.global_batch_tokens / self.expected.step_s

    @property
    def rate(self) -> Rate | None:
        """Tokens per second and rank: measured, or else expected."""
        tokens, expected = self.spec.tokens_per_gpu, self.expected
        if self.tokens_per_s is not None:
            return Rate(self.tokens_per_s / self.spec.world_size)
        if expected is None:
            return None
        return Rate(tokens / expected.step_s, (tokens / expected.high_s, tokens / expected.low_s))

    @property
    def least_step_s(self) -> float | None:
        """Lower bound of a step's seconds."""
        return None if self.bound is None else self.bound.step_s

    @property
    def step_bound_s(self) -> float | None:
        """Lower bound of a step's seconds, if all of its terms are known."""
        return None if self.bound is None or not self.bound.is_whole else self.bound.step_s

    @property
    def is_replayed(self) -> bool:
        """True if its expected time is that of the recorded issue order, which DeepSpeed keys change."""
        return self.has_trace and self.spec.adapter is None

    @property
    def lacks_allocator(self) -> bool:
        """True if memory that the allocator holds beyond tensors is not known: no formula knows it of such work."""
        return self.spec.evidence is Evidence.FORMULA and not self.has_allocator

    @property
    def took_s(self) -> float | None:
        """Seconds from the start of the trial to its end."""
        if self.started_at_s is None or self.ended_at_s is None:
            return None
        return self.ended_at_s - self.started_at_s

    @property
    def offload(self) -> str:
        """The farthest place that a state is offloaded to, or `none`."""
        return next((place.value for place in (Offload.NVME, Offload.CPU) if self.offloads(place)), Offload.NONE.value)

    @property
    def among_ranks(self) -> list[RankFigures]:
        """The ranks that train, or a server if it ran alone."""
        return [rank for rank in self.ranks if rank.role == Role.WORKER] or list(self.ranks)

    @property
    def steady_peak(self) -> Instant | None:
        """The device's largest instant of a steady step."""
        return largest_of(self.steady, Place.DEVICE)

    @property
    def start_up_bytes(self) -> int | None:
        """The device's peak of init and the first step."""
        known = [rank.first_peak_bytes for rank in self.ranks if rank.first_peak_bytes is not None]
        return max(known, default=None)

    def offloads(self, *places: Offload) -> bool:
        """True if optimizer states or parameters are offloaded to one of `places`; to any without them."""
        return bool(self.spec.offloaded_to & set(places or Offload))

    def peak(self, place: Place) -> Instant | None:
        """The largest steady peak of `place`, by category."""
        return next((instant for where, instant in self.peaks if where is place), None)

    def named(self, label: str, parity: Parity | None, loss_distance: float | None) -> TrialFigures:
        """Copy with the label, parity and loss distance, which depend on the other trials."""
        with_distance = self.resumed and replace(self.resumed, loss_distance=loss_distance)
        return replace(self, label=label, parity=parity, resumed=with_distance)


def evidence_words(trials: Iterable[TrialFigures]) -> str:
    """Evidence of the figures of `trials`, for titles: `simulated`, `formula`."""
    return ", ".join(dict.fromkeys(trial.spec.evidence.value for trial in trials))
