"""Speed of bf16 on this machine's processor, measured by torch in a separate process: the runner imports no torch."""

import math
import subprocess
import sys

from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Machine
from zerobench.config.hardware.toolchain import package_folder
from zerobench.config.sweep.precision import needs_bf16_speed
from zerobench.config.sweep.sweep import Sweep

PATIENCE_S = 300.0
"""Seconds. Importing torch takes two on an idle machine, and a minute on one that swaps."""


def measure_arithmetic(machine: Machine, sweep: Sweep) -> Machine:
    """Return `machine`, which is this one, with the measurements that `sweep` needs.

    Raises UserError if torch does not answer.
    """
    if package_folder("torch") is None or not needs_bf16_speed(sweep, machine):
        return machine
    return machine.model_copy(update={"bf16_slowdown": bf16_slowdown()})


def bf16_slowdown() -> float:
    """Return the time of a bf16 product on this CPU divided by that in fp32 (zerobench.rank.loop.probe_bf16).

    Raises UserError if torch does not answer.
    """
    command = [sys.executable, "-m", "zerobench.rank.loop.probe_bf16"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        slowdown = float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        message = (
            str(error) if isinstance(error, subprocess.TimeoutExpired) else getattr(error, "stderr", None) or str(error)
        )
        last = message.strip().splitlines()[-1] if message.strip() else "no output"
        raise UserError(
            f"precision: auto: this processor's bf16 speed could not be measured ({last}); choices: --set "
            "precision=fp32, --set precision=bf16"
        ) from None
    return slowdown if math.isfinite(slowdown) else 1.0
