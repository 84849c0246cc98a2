"""Cost of a training with a planned configuration: days, GPU-hours, money and energy."""

from dataclasses import dataclass

from zerobench.config.derived.training import Training, most_energy_kwh
from zerobench.config.hardware.hardware import Gpu
from zerobench.report.figures.trial import TrialFigures


@dataclass(frozen=True)
class TrainingCost:
    """Cost of a training with a configuration, at one length of the step."""

    days: float
    gpu_hours: float
    cost: float | None
    """None without a price."""
    most_energy_kwh: float | None
    """None where the GPU's power is not known."""


def takes(row: TrialFigures, gpu: Gpu, training: Training) -> tuple[TrainingCost, TrainingCost, TrainingCost] | None:
    """At the low end of the step's interval, at the expected step and at the high end; None without expected time."""
    expected, spec = row.expected, row.spec

    def at(step_s: float) -> TrainingCost:
        hours = training.gpu_hours(step_s, spec)
        return TrainingCost(training.days(step_s, spec), hours, training.cost(hours), most_energy_kwh(gpu, hours))

    return None if expected is None else (at(expected.low_s), at(expected.step_s), at(expected.high_s))
