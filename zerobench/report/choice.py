"""Which configuration to take first where nothing was timed: the one rule of plans and of reports.

Nothing is known then of how long a step takes but what it cannot take less than, and two lower bounds do not order two
configurations. Memory decides alone: of what fits with room, what is offloaded least, for that costs what the host link
and the host's memory are slower; of that the lowest stage, which partitions no more than it must; of that most room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from zerobench.spec.trial import Offload

ROOM = 0.05
"""The share of a memory that a recommended configuration leaves free: predictions err, and memory fragments."""

RULE = "of those it offloads least, at the lowest stage"
"""The rule in words; what follows may say how many those are."""

UNDECIDED = "which is fastest no lower bound tells: measure"

_REACH = {Offload.NONE: 0, Offload.CPU: 1, Offload.NVME: 2}
_NO_STAGE = 4

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Option:
    """What the rule knows of a configuration."""

    zero_stage: int | None
    offload_optimizer: Offload
    offload_param: Offload
    room: float
    """What is left of the scarcer of device and host memory, as a share of it."""

    @property
    def has_room(self) -> bool:
        """Whether it leaves as much as it should."""
        return self.room >= ROOM

    @property
    def rank(self) -> tuple[int, int, int, float]:
        """The smallest is taken."""
        reaches = [_REACH[self.offload_optimizer], _REACH[self.offload_param]]
        stage = _NO_STAGE if self.zero_stage is None else self.zero_stage
        return max(reaches), sum(reaches), stage, -self.room


def chosen(items: Iterable[_Item], option: Callable[[_Item], Option]) -> _Item | None:
    """The one of `items` to take; None where none fits with room."""
    roomy = [item for item in items if option(item).has_room]
    return min(roomy, key=lambda item: option(item).rank, default=None)
