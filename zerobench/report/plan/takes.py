"""What a training takes with one configuration of a plan."""

from dataclasses import dataclass

from zerobench.report.plan.rows import PlanRow
from zerobench.spec.hardware import Gpu
from zerobench.spec.training import Training, most_energy_kwh


@dataclass(frozen=True)
class TrainingCost:
    """At one length of the step."""

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
