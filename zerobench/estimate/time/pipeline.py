"""The passes of a pipeline: each stage works through its schedule, and waits for what the stages beside it send.

A stage may run a micro-batch forward once it has come from the stage before, and backward once its gradient has come
from the stage after. It goes on when it has sent what it made, as torch's schedules wait for what they send
(torch/distributed/pipelining/schedules.py, `_wait_batch_p2p`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_Pass = tuple[bool, int]
"""Whether it is a forward pass, and its micro-batch."""


class StageTimes(NamedTuple):
    """Seconds of one micro-batch in one stage."""

    forward_s: float
    backward_s: float
    border_s: float
    """In which its hidden states pass to the next stage, or their gradient comes back; of the last: nothing."""


def passes_s(stages: Sequence[StageTimes], micro_batches: int, *, forward_first: bool) -> float:
    """Seconds until the last stage's last pass. `forward_first`: all forward passes come first (GPipe), else as soon as
    the pipeline is full one backward pass follows each forward pass (1F1B).
    """
    last = len(stages) - 1
    orders = [
        _order(micro_batches, micro_batches if forward_first else min(len(stages) - index, micro_batches))
        for index in range(len(stages))
    ]
    there = {(0, True, micro_batch): 0.0 for micro_batch in range(micro_batches)}
    free, done = [0.0] * len(stages), [0] * len(stages)
    while any(at < 2 * micro_batches for at in done):
        for index, stage in enumerate(stages):
            while done[index] < 2 * micro_batches:
                forward, micro_batch = orders[index][done[index]]
                came = there.pop((index, forward, micro_batch), None)
                if came is None:
                    break
                end = max(free[index], came) + (stage.forward_s if forward else stage.backward_s)
                if forward and index == last:
                    there[index, False, micro_batch] = end
                elif forward or index > 0:
                    end += stage.border_s if forward else stages[index - 1].border_s
                    there[index + (1 if forward else -1), forward, micro_batch] = end
                free[index] = end
                done[index] += 1
    return max(free)


def _order(micro_batches: int, ahead: int) -> list[_Pass]:
    """A stage's passes, of which `ahead` forward ones come before the first backward pass."""
    backward = [(False, micro_batch) for micro_batch in range(micro_batches)]
    order = [(True, micro_batch) for micro_batch in range(ahead)]
    for micro_batch in range(ahead, micro_batches):
        order += [backward[micro_batch - ahead], (True, micro_batch)]
    return [*order, *backward[micro_batches - ahead :]]
