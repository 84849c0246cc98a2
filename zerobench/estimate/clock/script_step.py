"""The expected time of a user's script, whose step was recorded while it was played; there is no other."""

from __future__ import annotations

from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.links import Links
from zerobench.config.hardware.overheads import calibrated_steps
from zerobench.estimate.clock.achieved import achieved
from zerobench.estimate.clock.assumed import host_assumption, script_assumptions
from zerobench.estimate.clock.calibrated import calibrated
from zerobench.estimate.clock.host import block_issue, engine_of
from zerobench.estimate.clock.issued_step import IssuedStep, Place, device_at_16_bits, issued_step
from zerobench.estimate.clock.rates import rates_of
from zerobench.estimate.clock.step import ExpectedStep, Sides, expected
from zerobench.estimate.clock.trace import StepTrace, unpack
from zerobench.records.trials import Trial

NO_TRACE = "no steady step was recorded: two optimizer steps must be played (--steps 2)"


def script_expected(trial: Trial, gpu: Gpu, links: Links) -> ExpectedStep | None:
    """What a steady step is expected to take; None where it has no time (`why_no_script_time`).

    On a machine that was calibrated its own constants hold. Raises UserError: its trace is none.
    """
    step, measured = _replayed_script(trial, gpu, links), calibrated_steps(gpu.name)
    if step is None or measured is None:
        return step
    return calibrated(step, *measured, rates_of(gpu)[0].spread, 0.0)


def why_no_script_time(trial: Trial, gpu: Gpu, links: Links) -> str:
    """Why no step is expected of it, of which there is none."""
    issued = script_step(trial, gpu, links)
    return issued if isinstance(issued, str) else "a rate of its step is not known"


def script_step(trial: Trial, gpu: Gpu, links: Links) -> IssuedStep | str:
    """The step of a user's script as its rank issued it, or why there is none."""
    text = next((rank.step_trace for rank in trial.ranks if rank.step_trace is not None), None)
    if text is None:
        return NO_TRACE
    device, measured = device_at_16_bits(gpu), calibrated_steps(gpu.name)
    constants = None if measured is None else measured[0].constants
    reached = links if device is None else achieved(links, device.rates)
    if constants is not None:
        reached = reached.slowed(copies=constants.copies_slower, host_update=constants.host_update_slower)
    place = Place(gpu, reached, trial.spec.world_size, trial.spec.gpus_per_node)
    return issued_step(_unpacked(trial, text), place, block_issue(engine_of(trial.spec)), constants)


def _replayed_script(trial: Trial, gpu: Gpu, links: Links) -> ExpectedStep | None:
    issued = script_step(trial, gpu, links)
    parts = None if isinstance(issued, str) else issued.parts()
    if isinstance(issued, str) or parts is None:
        return None
    device, spec = issued.pace.device, trial.spec
    granted: dict[str, float | Sides] = {**device.assumptions, **script_assumptions(issued.trace, spec.world_size)}
    granted |= host_assumption(device.host, lambda host: sum(issued.issued_by(host).parts() or parts))
    return expected(parts, device.rates.spread, granted)


def _unpacked(trial: Trial, text: str) -> StepTrace:
    """The trace `text` of a trial. Raises UserError: it is none."""
    try:
        return unpack(text)
    except ValueError as error:
        raise UserError(f"step_trace of {trial.spec.trial_id}: {error}") from error
