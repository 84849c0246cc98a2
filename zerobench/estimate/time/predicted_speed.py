"""Which GPU a trial is about, and what a predicted step takes on it: at least, and expected."""

from typing import NamedTuple

from zerobench.estimate.clock.place import place_of
from zerobench.estimate.clock.replay import Timeline
from zerobench.estimate.clock.roofline import Roofline
from zerobench.estimate.clock.step import ExpectedStep
from zerobench.estimate.time.bound import StepBound, step_bound
from zerobench.estimate.time.expected import expected_step, roofline, timeline
from zerobench.records.trials import Trial


class PredictedStep(NamedTuple):
    """Times of a predicted step; None where a figure is missing."""

    bound: StepBound | None = None
    """What it takes at least."""
    expected: ExpectedStep | None = None


def predicted_step(trial: Trial) -> PredictedStep:
    """What a step of a predicted trial takes, on nodes as `zerobench plan` has them by default."""
    place = place_of(trial)
    if place is None:
        return PredictedStep()
    return PredictedStep(step_bound(trial, *place), expected_step(trial, *place))


def predicted_timeline(trial: Trial) -> Timeline | None:
    """Its step as it is replayed on such nodes; None for a trial without a trace."""
    place = place_of(trial)
    return None if place is None else timeline(trial, *place)


def predicted_roofline(trial: Trial) -> Roofline | None:
    """Its kernels by class against the GPU's peaks; None for a trial without a trace."""
    place = place_of(trial)
    return None if place is None else roofline(trial, *place)
