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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from zerobench.config.derived.strategy import paper_stage
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.recomputation import recomputed_blocks
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.estimate.clock.order import least_ratio
from zerobench.report.figures.fit import ROOM
from zerobench.report.figures.trial import TrialFigures

AS_FAST = 0.01
"""A step that is shorter by less than this share is no gain: the simpler of the two is taken."""

_REACH = {Offload.NONE: 0, Offload.CPU: 1, Offload.NVME: 2}
_NO_STAGE = 4
_OFFLOAD, _STAGE = "least offload", "lowest stage"


@dataclass(frozen=True)
class Choice:
    """The recommended configuration and how many competed."""

    best: TrialFigures
    num_fitting: int
    num_tied: int
    """Number within AS_FAST of the fastest, the best among them."""
    is_timed: bool
    """True if the time of any that fits is known."""
    num_unchecked: int = 0
    """Number of those that fit whose host memory nobody could check."""
    rule: tuple[str, ...] = ()
    """Criteria among those that are as fast: offload, stage, and between them what they differ in."""
    runner_up: TrialFigures | None = None
    """The best alternative; None where nothing else fits with room."""
    measured_on: str = ""
    """The ranks on which it was measured to be the fastest, which outweighs all expectation; empty for a prediction."""

    @property
    def reason(self) -> str:
        """Reason for the choice, in words."""
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


def decide(rows: Iterable[TrialFigures]) -> Choice | None:
    """The configuration to take with its runner-up; None where none fits with room."""
    known = list(rows)
    choice = choose(known)
    if choice is None:
        return None
    rest = [row for row in known if row is not choice.best and row.has_room]
    unsure = [row for row in rest if not is_surely_slower(row, choice.best)]
    if choice.is_timed and unsure:
        return replace(choice, runner_up=min(unsure, key=_rank))
    second = choose(rest)
    return replace(choice, runner_up=None if second is None else second.best)


def is_surely_slower(one: TrialFigures, best: TrialFigures) -> bool:
    """True if `one` takes longer for a token than `best` in nine of ten cases, or if a time is not known."""
    if one.expected is None or best.expected is None:
        return True
    return least_ratio(one.expected, best.expected) > one.spec.tokens_per_gpu / best.spec.tokens_per_gpu


def choose(
    rows: Iterable[TrialFigures], room_of: Callable[[TrialFigures], float] = attrgetter("room")
) -> Choice | None:
    """The configuration to take, without its runner-up; None where none fits with room."""
    roomy = [row for row in rows if room_of(row) >= ROOM]
    if not roomy:
        return None
    fastest_s = min(map(token_s, roomy))
    is_timed = not math.isinf(fastest_s)
    tied = [row for row in roomy if token_s(row) <= (1 + AS_FAST) * fastest_s]
    costs = [_criteria(row.spec) for row in tied]
    return Choice(
        best=min(tied, key=lambda row: _rank(row, room_of(row))),
        num_fitting=len(roomy),
        num_tied=len(tied),
        is_timed=is_timed,
        num_unchecked=sum(row.fit.host_unchecked for row in roomy),
        rule=tuple(by for by in costs[0] if by in {_OFFLOAD, _STAGE} or len({cost[by] for cost in costs}) > 1),
    )


def token_s(row: TrialFigures) -> float:
    """Seconds of a GPU: batches may differ, and numbers of GPUs. Infinite where it is not known."""
    return math.inf if row.expected is None else row.expected.step_s / row.spec.tokens_per_gpu


def recomputed_share(spec: TrialSpec) -> float:
    """Share of blocks whose forward pass runs again."""
    blocks = dimensions(spec.model).num_layers or 1
    return recomputed_blocks(spec.activation_checkpointing, blocks) / blocks


def _criteria(spec: TrialSpec) -> dict[str, tuple[float, ...]]:
    """Costs by the rule's names, the weightiest first: the smallest is the simplest."""
    reaches = [_REACH[spec.offload_optimizer], _REACH[spec.offload_param]]
    return {
        _OFFLOAD: (max(reaches), sum(reaches)),
        "fewest GPUs": (spec.world_size,),
        "least checkpointing": (recomputed_share(spec),),
        "fewest settings": (len(spec.ds_config),),
        _STAGE: (_NO_STAGE if spec.zero_stage is None else spec.zero_stage, paper_stage(spec) or 0),
    }


def _rank(row: TrialFigures, room: float | None = None) -> tuple[float, ...]:
    """The smallest is the simplest, and of those as simple the one with most room."""
    return *itertools.chain.from_iterable(_criteria(row.spec).values()), -(row.room if room is None else room)
