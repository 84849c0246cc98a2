"""An expected time on a machine whose own trials were timed (`zerobench calibrate`)."""

from __future__ import annotations

import math

from zerobench.common.units import counted
from zerobench.config.hardware.overheads import CalibratedSteps
from zerobench.estimate.clock.assumed import HOST_WORDS, cause_of
from zerobench.estimate.clock.step import ExpectedStep, expected


def calibrated(step: ExpectedStep, steps: CalibratedSteps, run_id: str, spread: float, least_s: float) -> ExpectedStep:
    """`step` as the trials of run `run_id` have it; `spread` is of what they say nothing of."""
    parts = (step.compute_s, step.exposed_communication_s, step.update_s, step.bubble_s)
    scaled = (True, not steps.of_passes, not steps.of_passes, True)
    seconds = [steps.factor * part if is_scaled else part for part, is_scaled in zip(parts, scaled, strict=True)]
    longer = max(1.0, least_s / sum(seconds))
    words = _calibration_words(steps, longer, run_id)
    share = sum(part for part, is_scaled in zip(seconds, scaled, strict=True) if is_scaled) / sum(seconds)
    others = {
        each: spread
        for each, spread in step.assumed.items()
        if each not in steps.covered and not (steps.constants and cause_of(each) == HOST_WORDS)
    }
    own = math.hypot(share * steps.spread, (1 - share) * spread)
    return expected([longer * part for part in seconds], own, {words: 0.0, **others})


def _calibration_words(steps: CalibratedSteps, longer: float, run_id: str) -> str:
    constants, trials = steps.constants, counted(steps.num_trials, "trial")
    slower = steps.factor * longer * (1.0 if constants is None else constants.slower)
    host = "" if constants is None else f", {constants.host_words}"
    return f"computing takes {slower:.3g} times the published rates' time{host}, as in {trials} of {run_id}"
