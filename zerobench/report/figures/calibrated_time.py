"""Calibration of the time model by measured steps: the constants of their machine, and how well all of them then agree.

Six differ from machine to machine: how long kernels take, how fast the host launches them, how fast its Python is, what
lies between steps, how fast copies to the host are and updates there. They are fitted to the trials' passes and whole
steps, each held near what is shipped by as much as it is known (`_KNOWN`), so that a trial moves what it tells of and
nothing else. What then is left is a factor, and the trials' spread around it; the spread of the published runs counts
as one trial more, so that a single trial is no certainty. Where all timed trials are of ranks that ran alone, that is
said of their passes without communication: one GPU tells of computing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.overheads import CalibratedSteps, StepConstants
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.clock.assumed import COPIES_WORDS, HOST_UPDATE_WORDS
from zerobench.estimate.clock.place import gpu_of, usual_cluster
from zerobench.estimate.clock.rates import rates_of, shipped_rates
from zerobench.estimate.time.expected import TimedWork, parts_of, published_step, timed_work
from zerobench.records.trials import Trial
from zerobench.report.figures.speed import speed_of


def _known() -> dict[str, float]:
    """Uncertainty of the shipped constants: standard deviations of their logarithms."""
    host = shipped_rates().host
    return {
        "slower": 0.2,
        "launch_s": host.launch_spread,
        "python_slower": host.python_spread,
        "step_s": 1.0,
        "copies_slower": 0.3,
        "host_update_slower": 0.6,
    }


_NOISE = 0.04
"""Noise of a measured time, by which like trials differ."""
_ROUNDS = 12


class TimedStep(NamedTuple):
    """A measured step."""

    gpu: Gpu
    of_passes: bool
    """Factor of a rank that ran alone."""
    asked: TimedWork
    passes_s: float | None
    step_s: float
    assumptions: tuple[str, ...]
    """Assumptions of the shipped rates about it."""

    def logs(self, constants: StepConstants) -> list[float]:
        """Logarithms of measured over expected: of the passes, where they were timed, and of the whole step."""
        parts = parts_of(self.asked.at(constants))
        if parts is None:
            raise ValueError(f"{self.asked.work.spec.trial_id}: no time is expected any more")
        # The passes are meant with copies of offload, which nothing runs beside.
        passes = [] if self.passes_s is None else [math.log(self.passes_s / sum(parts[:2]))]
        return passes if self.of_passes else [*passes, math.log(self.step_s / sum(parts))]


def timed_step(trial: Trial) -> TimedStep | None:
    """None of what no time is expected of, and of what was not measured."""
    gpu, speed, of_passes = gpu_of(trial), speed_of(trial), trial.spec.evidence is Evidence.SOLO
    if trial.spec.evidence not in {Evidence.MEASURED, Evidence.SOLO} or gpu is None or speed is None:
        return None
    asked = timed_work(trial, gpu, usual_cluster(trial.spec, gpu).links)
    shipped = None if asked is None else published_step(asked)
    if asked is None or shipped is None:
        return None
    passes_s = speed.forward_s + speed.backward_s if speed.forward_s and speed.backward_s else None
    if of_passes and passes_s is None:
        return None
    return TimedStep(gpu, of_passes, asked, passes_s, speed.step_time_s_median, shipped.assumptions)


def fitted_steps(steps: Sequence[TimedStep]) -> CalibratedSteps:
    """Calibration by the steps, all on one model of GPU."""
    gpu = steps[0].gpu
    constants = fitted_constants(steps)
    logs = [step.logs(constants)[-1] for step in steps]
    middle, known = statistics.fmean(logs), rates_of(gpu)[0].spread
    spread = math.sqrt((sum((log - middle) ** 2 for log in logs) + known**2) / len(logs))
    return CalibratedSteps(
        gpu=gpu.name,
        num_trials=len(logs),
        constants=constants,
        factor=math.exp(middle),
        spread=round(spread, 4),
        covered=_covered(steps),
        of_passes=steps[0].of_passes,
    )


def _covered(steps: Sequence[TimedStep]) -> tuple[str, ...]:
    """Assumptions that the calibration covers: those that all trials make, and those of any that has a constant of its
    own.
    """
    own = (COPIES_WORDS,) if steps[0].of_passes else (COPIES_WORDS, HOST_UPDATE_WORDS)
    assumed = dict.fromkeys(words for step in steps for words in step.assumptions)
    return tuple(words for words in assumed if words in own or all(words in step.assumptions for step in steps))


def fitted_constants(steps: Sequence[TimedStep]) -> StepConstants:
    """The likeliest constants: the least squares of what is off, of times and of what is known of each constant."""
    host, today = shipped_rates().host, shipped_rates().today
    usual = {"launch_s": host.launch_s, "python_slower": host.slower, "step_s": today.step_s}
    known = _known()
    shipped = {name: usual.get(name, 1.0) for name in known}

    def at(logs: np.ndarray) -> StepConstants:
        pairs = zip(shipped.items(), logs, strict=True)
        return StepConstants(**{name: value * math.exp(log) for (name, value), log in pairs})

    def residuals(logs: np.ndarray) -> np.ndarray:
        off = [log / _NOISE for step in steps for log in step.logs(at(logs))]
        return np.array([*off, *(log / spread for log, spread in zip(logs, known.values(), strict=True))])

    return at(_least(residuals, np.zeros(len(shipped))))


def _least(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> np.ndarray:
    """The least-squares solution near `start` (Levenberg and Marquardt)."""
    point, now, damping, step = start, residuals(start), 1.0, 1e-2
    for _ in range(_ROUNDS):
        slopes = np.array([(residuals(point + step * way) - now) / step for way in np.eye(len(point))]).T
        curve = slopes.T @ slopes
        there = point - np.linalg.solve(curve + damping * np.diag(np.diag(curve)), slopes.T @ now)
        then = residuals(there)
        if then @ then < now @ now:
            point, now, damping = there, then, damping / 4
        else:
            damping *= 4
    return point
