"""What an expected time takes for granted, and the spread that it brings."""

from __future__ import annotations

import math
from collections.abc import Callable

from zerobench.estimate.clock.issued_step import moves_to_host, untimed_classes, updates_on_host
from zerobench.estimate.clock.rates import HostRates
from zerobench.estimate.clock.step import TENTH, Sides
from zerobench.estimate.clock.trace import StepTrace

HOST_WORDS = "the host launches a kernel in"


COPIES_WORDS = "copies reach 80% of the host link"


HOST_UPDATE_WORDS = "CPUAdam and what goes with it reach 15% of the host's memory bandwidth"


_TOLD_WAIT = 0.01
"""The least part of a step that the GPU waits for a slow host that is said."""


def script_assumptions(trace: StepTrace, world_size: int) -> dict[str, float]:
    """What of a script's own step no timed program had, and the spread that it brings."""
    spreads = {"element-wise kernels reach the memory bandwidth that those of eager transformers do": 0.08}
    if untimed := untimed_classes(trace):
        spreads[f"not timed on any GPU, by datasheet peak: {', '.join(untimed)}"] = 0.15
    if world_size > 1:
        spreads["collectives reach the shares of links that FSDP's did"] = 0.1
    if moves_to_host(trace):
        spreads[COPIES_WORDS] = 0.25
    if updates_on_host(trace):
        spreads[HOST_UPDATE_WORDS] = 0.55
    spreads["work between steps (data loading, logging) is not included"] = 0.0
    return spreads


def host_assumption(host: HostRates | None, step_s: Callable[[HostRates | None], float]) -> dict[str, float | Sides]:
    """Of steps in which the GPU waits for the host: `step_s` tells what a step takes with it, another, or none that is
    late.
    """
    if host is None:
        return {}
    slow = host.off(TENTH)
    least_s, usual_s, slow_s = map(step_s, (None, host, slow))
    waits, waits_longer = (1 - least_s / took_s for took_s in (usual_s, slow_s))
    if waits_longer < _TOLD_WAIT:
        return {}
    words = f"{HOST_WORDS} {1e6 * host.launch_s:.2g} us, and the GPU waits for it {waits:.0%} of the step"
    words += f" ({waits_longer:.0%} at {1e6 * slow.launch_s:.2g} us)"
    fast_s = step_s(host.off(-TENTH))
    return {words: Sides(math.log(usual_s / fast_s) / TENTH, math.log(slow_s / usual_s) / TENTH)}


def cause_of(words: str) -> str:
    """What an assumption is about: two of one cause come true or do not together."""
    return HOST_WORDS if words.startswith(HOST_WORDS) else words
