"""Which configuration to take first where nothing was timed: the one rule of plans and of reports.

Of what fits with room, the one that is expected to take the least time of a GPU for a token (where all have one batch:
the shortest step); those of which it is not sure that they take longer are tied with it (step_time/order.py), and of
them the simplest is taken: what is offloaded least, then on fewest GPUs, then what recomputes least and sets fewest
keys, then the lowest stage, which partitions no more than it must (torch's strategies after ZeRO's, by the stage that
partitions as much), then most room. Where no time is known, all that fits with room is tied. A search for the fastest
(`within`) takes less for a tie: variants on one GPU err alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from zerobench.report.step_time.order import least_ratio
from zerobench.spec.architecture import dimensions
from zerobench.spec.recomputation import recomputed_blocks
from zerobench.spec.strategy import paper_stage
from zerobench.spec.trial import Offload, TrialSpec
from zerobench.timing.step import ExpectedStep

ROOM = 0.05
"""The share of a memory that a recommended configuration leaves free: predictions err, and memory fragments."""

_REACH = {Offload.NONE: 0, Offload.CPU: 1, Offload.NVME: 2}
_NO_STAGE = 4
_OFFLOAD, _STAGE = "least offload", "lowest stage"

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Option:
    """What the rule knows of a configuration."""

    spec: TrialSpec
    room: float
    """What is left of the scarcer of device and host memory, as a share of it."""
    host_room: float | None = None
    """That of the host alone; None: nobody said how much there is."""
    expected: ExpectedStep | None = None
    """None: the time of its step is not known."""

    @property
    def host_unchecked(self) -> bool:
        """Whether it needs host memory and nobody said how much there is."""
        return bool(self.spec.offloaded_to) and self.host_room is None

    @property
    def has_room(self) -> bool:
        """Whether it leaves as much as it should."""
        return self.room >= ROOM

    @property
    def recomputed(self) -> float:
        """The share of blocks whose forward pass runs again."""
        blocks = dimensions(self.spec.model).num_layers or 1
        return recomputed_blocks(self.spec.activation_checkpointing, blocks) / blocks

    @property
    def per_token_s(self) -> float:
        """Seconds of a GPU: batches may differ, and numbers of GPUs. Infinite where it is not known."""
        return math.inf if self.expected is None else self.expected.step_s / self.spec.tokens_per_gpu

    @property
    def criteria(self) -> dict[str, tuple[float, ...]]:
        """What makes it simple, as the rule names it, the weightiest first: of each the smallest is the simplest."""
        spec = self.spec
        reaches = [_REACH[spec.offload_optimizer], _REACH[spec.offload_param]]
        return {
            _OFFLOAD: (max(reaches), sum(reaches)),
            "fewest GPUs": (spec.world_size,),
            "least checkpointing": (self.recomputed,),
            "fewest settings": (len(spec.ds_config),),
            _STAGE: (_NO_STAGE if spec.zero_stage is None else spec.zero_stage, paper_stage(spec) or 0),
        }

    @property
    def rank(self) -> tuple[float, ...]:
        """The smallest is the simplest, and of those as simple the one with most room."""
        return *itertools.chain.from_iterable(self.criteria.values()), -self.room


@dataclass(frozen=True)
class Choice(Generic[_Item]):
    """What is taken, and among how many."""

    best: _Item
    num_fitting: int
    num_tied: int
    """Those that are expected to be as fast, itself among them."""
    is_timed: bool
    """Whether the time of any that fits is known."""
    num_unchecked: int = 0
    """Of those that fit: the ones whose host memory nobody could check."""
    rule: tuple[str, ...] = ()
    """By what it is taken among those that are as fast: offload, stage, and between them what they differ in."""

    @property
    def reason(self) -> str:
        """Why it is taken, in words."""
        unchecked = f" (host memory not checked for {self.num_unchecked})" if self.num_unchecked else ""
        if self.num_fitting == 1:
            return "the only one that fits with room" + (" (host memory not checked)" if unchecked else "")
        those = f"{self.num_fitting} fit with {ROOM:.0%} room{unchecked}"
        rule = ", ".join(self.rule)
        if not self.is_timed:
            return f"{those}; chosen: {rule}; step times unknown, measure them"
        if self.num_tied == 1:
            return f"expected to be the fastest of {self.num_fitting} that fit with {ROOM:.0%} room{unchecked}"
        tied = "all" if self.num_tied == self.num_fitting else f"{self.num_tied}"
        return f"{those}, {tied} about as fast; chosen: {rule}"


def choose(
    items: Iterable[_Item], option: Callable[[_Item], Option], within: float | None = None
) -> Choice[_Item] | None:
    """The one of `items` to take; None where none fits with room. `within`: the share of the shortest time for a token
    by which others may be longer and are tied all the same; None: those whose order is not sure are.
    """
    roomy = [item for item in items if option(item).has_room]
    if not roomy:
        return None
    tied = _as_fast([option(item) for item in roomy], within)
    alike = [item for item, is_tied in zip(roomy, tied or [True] * len(roomy), strict=True) if is_tied]
    best = min(alike, key=lambda item: option(item).rank)
    costs = [option(item).criteria for item in alike]
    return Choice(
        best,
        len(roomy),
        len(alike),
        is_timed=tied is not None,
        num_unchecked=sum(option(item).host_unchecked for item in roomy),
        rule=tuple(by for by in costs[0] if by in {_OFFLOAD, _STAGE} or len({each[by] for each in costs}) > 1),
    )


def _as_fast(options: Sequence[Option], within: float | None) -> list[bool] | None:
    """Whether each is about as fast as the fastest; None where no time is known. One of unknown time is not."""
    fastest = min(options, key=lambda option: option.per_token_s)
    if (least := fastest.expected) is None:
        return None
    if within is not None:
        return [option.per_token_s <= (1 + within) * fastest.per_token_s for option in options]
    tokens = fastest.spec.tokens_per_gpu
    return [
        option.expected is not None and least_ratio(option.expected, least) <= option.spec.tokens_per_gpu / tokens
        for option in options
    ]
