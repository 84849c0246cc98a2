"""What a plan says of one trial: the memory it needs, whether a cluster has it, and how fast a step can be at best.

What must fit is said by zerobench.report.figures.capacity; here it is held against what there is, and rows against each
other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from zerobench.common.vocabulary import Place, Status, StepKind
from zerobench.config.derived.training import Training, most_energy_kwh
from zerobench.config.hardware.hardware import Gpu, peak_flops
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.time.bound import StepBound
from zerobench.estimate.time.step import ExpectedStep
from zerobench.records.instants import Instant, largest_peak
from zerobench.records.trials import Trial
from zerobench.report.explain.choice import Choice, Option, decide
from zerobench.report.figures.capacity import DeviceNeed, device_needs, host_bytes_per_node, largest_need
from zerobench.report.figures.fit import Fit, Space
from zerobench.report.figures.name import TrialName
from zerobench.report.figures.speed import flops_per_s


@dataclass(frozen=True)
class PlanRow:
    """One trial of a plan whose figures are whole, on the cluster that it is planned for."""

    label: str
    trial: Trial
    device_bytes: int
    """Memory that CUDA hands out on one GPU."""
    host_bytes: int | None
    """Memory of one host that training may use; None: not judged."""
    bound: StepBound | None
    """What a step cannot take less than; None where no rank left a record."""
    expected: ExpectedStep | None = None
    """What a step is expected to take; None where the time model does not know such work."""

    @property
    def name(self) -> TrialName:
        """What tables say of its trial."""
        spec = self.trial.spec
        gpu = spec.prediction.gpu
        return TrialName(spec.trial_id, self.label, spec.evidence.value, gpu)

    @property
    def evidence(self) -> Evidence:
        """How its figures were obtained: emulated, simulated, or by formula."""
        return self.trial.spec.evidence

    @property
    def lacks_allocator(self) -> bool:
        """Whether what the allocator holds beyond tensors is not in it: no formula knows it of such work."""
        return self.evidence is Evidence.FORMULA and not any(rank.device_memory for rank in self.trial.ranks)

    @property
    def is_replayed(self) -> bool:
        """Whether its expected time is that of the order in which an engine issued its work, which keys change."""
        return any(rank.step_trace for rank in self.trial.ranks) and self.trial.spec.adapter is None

    @property
    def step_s(self) -> float | None:
        """The shortest that a step can take."""
        return None if self.bound is None else self.bound.step_s

    @cached_property
    def steady(self) -> Instant | None:
        """The device's largest instant of a steady step."""
        return largest_peak(self.trial, StepKind.STEADY, Place.DEVICE)

    @cached_property
    def start_up_bytes(self) -> int | None:
        """The device's peak of init and the first step."""
        first = largest_peak(self.trial, StepKind.FIRST, Place.DEVICE)
        return None if first is None else first.total_bytes

    @cached_property
    def needs(self) -> dict[StepKind, DeviceNeed]:
        """What one GPU needs at start-up, and in steps, each in parts."""
        return device_needs(self.trial)

    @property
    def need(self) -> DeviceNeed | None:
        """The larger of them: what has to fit."""
        return largest_need(self.needs)

    @cached_property
    def fit(self) -> Fit:
        """Its need of one GPU and, with the tensors of all ranks of a node, of the host."""
        refused = self.trial.record.status is Status.OUT_OF_DEVICE_MEMORY
        needed_bytes = None if self.need is None else self.need.total_bytes
        device = Space(needed_bytes, self.device_bytes, refused)
        return Fit(device, Space(host_bytes_per_node(self.trial), self.host_bytes), self.offloads)

    @property
    def device(self) -> Space:
        """One GPU's memory."""
        return self.fit.device

    @property
    def host(self) -> Space:
        """One node's memory."""
        return self.fit.host

    @property
    def offloads(self) -> bool:
        """Whether host memory or a drive holds what a GPU would."""
        return bool(self.trial.spec.offloaded_to)

    @property
    def verdict(self) -> str:
        """Whether it fits, in a word or two; empty where nothing is known of the device."""
        return self.fit.verdict

    @property
    def fits(self) -> bool:
        """Whether device and host hold it."""
        return self.fit.fits

    @cached_property
    def option(self) -> Option:
        """It as the rule of choice sees it."""
        return Option.of(self.trial.spec, self.fit, self.expected)

    @property
    def expected_tokens_per_s(self) -> float | None:
        """Over all ranks."""
        return None if self.expected is None else self.trial.spec.global_batch_tokens / self.expected.step_s

    @property
    def expected_mfu(self) -> float | None:
        """Model FLOP/s in the expected step over the GPU's peak, 0 to 1."""
        flops = None if self.expected is None else flops_per_s(self.trial, self.expected.step_s)
        peak = peak_flops(self.trial.ranks[0].device_name, self.trial.spec.precision) if flops is not None else None
        return None if flops is None or peak is None else flops / peak[0]

    @property
    def has_room(self) -> bool:
        """Whether device and host hold it with room to spare."""
        return self.fit.has_room

    @property
    def room(self) -> float:
        """The share that is left of the scarcer of device and host memory."""
        return self.fit.room

    @property
    def scaled_bytes(self) -> int | None:
        """What is needed of the scarcer memory, in bytes of the device's: one figure to hold against one capacity."""
        return None if self.need is None else round((1 - self.room) * self.device_bytes)


def evidence_words(rows: Iterable[PlanRow]) -> str:
    """How the figures of `rows` were obtained, for titles: `simulated`, `formula`."""
    return ", ".join(dict.fromkeys(row.evidence.value for row in rows))


def recommended(rows: Iterable[PlanRow]) -> Choice[PlanRow] | None:
    """The row to take, by the one rule (zerobench.report.explain.choice); None where none fits with room."""
    return decide(rows, lambda row: row.option)


@dataclass(frozen=True)
class TrainingCost:
    """What a training takes with a row, at one length of the step."""

    days: float
    gpu_hours: float
    cost: float | None
    """None without a price."""
    most_energy_kwh: float | None
    """None where the GPU's power is not known."""


def takes(row: PlanRow, gpu: Gpu, training: Training) -> tuple[TrainingCost, TrainingCost, TrainingCost] | None:
    """At the low end of the step's interval, at the expected step and at the high end; None without expected time."""
    expected, spec = row.expected, row.trial.spec

    def at(step_s: float) -> TrainingCost:
        hours = training.gpu_hours(step_s, spec)
        return TrainingCost(training.days(step_s, spec), hours, training.cost(hours), most_energy_kwh(gpu, hours))

    return None if expected is None else (at(expected.low_s), at(expected.step_s), at(expected.high_s))
