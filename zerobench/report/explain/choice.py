"""The one rule by which a configuration is recommended where nothing was timed: plans, searches and reports share it.

Among what fits with room, the shortest expected GPU time per token wins (with one batch: the shortest step).
Configurations within AS_FAST of it are tied, and the simplest of them is taken: least offload, then fewest GPUs, least
recomputation, fewest keys, then the lowest stage, which partitions no more than it must (torch's strategies after
ZeRO's, by the stage that partitions as much), then most room. Without expected times, all that fits with room is tied.

Expected times are uncertain by more than AS_FAST, so the choice never stands alone. The runner-up is the simplest of
those that are not surely slower (step_time/order.py), else the next fastest, and is reported with what it costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from zerobench.config.derived.strategy import paper_stage
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.recomputation import recomputed_blocks
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.estimate.time.order import least_ratio
from zerobench.estimate.time.step import ExpectedStep
from zerobench.report.figures.fit import ROOM, Fit

AS_FAST = 0.01
"""A step that is shorter by less than this share is no gain: the simpler of the two is taken."""

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
    needed_bytes: int | None = None
    """Of one GPU; None where not known."""

    @classmethod
    def of(cls, spec: TrialSpec, fit: Fit, expected: ExpectedStep | None) -> Option:
        """The option of a trial; what is not known of its device has no room."""
        room = fit.room if fit.is_known and fit.device.room is not None else -1.0
        return cls(spec, room, fit.host.room, expected, fit.device.needed_bytes)

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
    """The recommended item and how many competed."""

    best: _Item
    num_fitting: int
    num_tied: int
    """How many are within AS_FAST of the fastest, the best among them."""
    is_timed: bool
    """Whether the time of any that fits is known."""
    num_unchecked: int = 0
    """Of those that fit: the ones whose host memory nobody could check."""
    rule: tuple[str, ...] = ()
    """By what it is taken among those that are as fast: offload, stage, and between them what they differ in."""
    runner_up: _Item | None = None
    """The best alternative; None where nothing else fits with room."""
    measured_on: str = ""
    """The ranks on which it was measured to be the fastest, which outweighs all expectation; empty for a prediction."""

    @property
    def reason(self) -> str:
        """Why it is taken, in words."""
        if self.measured_on:
            return f"measured to be the fastest, on {self.measured_on}"
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


def decide(items: Iterable[_Item], option: Callable[[_Item], Option]) -> Choice[_Item] | None:
    """The item to take with its runner-up; None where none fits with room."""
    known = list(items)
    choice = choose(known, option)
    if choice is None:
        return None
    rest = [item for item in known if item is not choice.best and option(item).has_room]
    unsure = [item for item in rest if not is_surely_slower(option(item), option(choice.best))]
    if choice.is_timed and unsure:
        return replace(choice, runner_up=min(unsure, key=lambda item: option(item).rank))
    second = choose(rest, option)
    return replace(choice, runner_up=None if second is None else second.best)


def is_surely_slower(one: Option, best: Option) -> bool:
    """Whether `one` takes longer for a token than `best` in nine of ten cases; true where a time is not known."""
    if one.expected is None or best.expected is None:
        return True
    return least_ratio(one.expected, best.expected) > one.spec.tokens_per_gpu / best.spec.tokens_per_gpu


def choose(items: Iterable[_Item], option: Callable[[_Item], Option]) -> Choice[_Item] | None:
    """The item to take, without its runner-up; None where none fits with room."""
    roomy = [item for item in items if option(item).has_room]
    if not roomy:
        return None
    tied = _as_fast([option(item) for item in roomy])
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


def _as_fast(options: Sequence[Option]) -> list[bool] | None:
    """Whether each is within AS_FAST of the fastest; None where no time is known."""
    fastest_s = min(option.per_token_s for option in options)
    if math.isinf(fastest_s):
        return None
    return [option.per_token_s <= (1 + AS_FAST) * fastest_s for option in options]
