"""Optimizer steps of a trial in order: purpose of each, and its tokens over all ranks.

A pure function of the trial, so that every rank, every strategy and the single process take the same steps on the same
samples. With a ramp of the batch, whenever the batch has grown, one step is taken under the ledger before steps of that
batch are timed: so each size has its peak, and the last one, the full batch, is what is reported as `steady`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zerobench.common.vocabulary import StepKind
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.trial.trial import StepsSpec, TrialSpec

UNDER_LEDGER = {"first": StepKind.FIRST, "memory": StepKind.STEADY}
"""Kinds of steps whose memory is recorded, and the name under which it is."""


class PlannedStep(NamedTuple):
    """One optimizer step."""

    kind: str
    """`first`, `warmup`, `memory`, `timed` or `communication`."""
    seen_tokens: int
    """Tokens trained before it, over all ranks."""
    tokens: int
    """Its tokens over all ranks: its global batch."""


def step_kinds(steps: StepsSpec, *, is_fresh: bool = True) -> list[str]:
    """Kinds of the steps of a fixed batch; a model that was trained before has no first step."""
    return [*_opening(steps, is_fresh=is_fresh), *["timed"] * steps.timed, *["communication"] * steps.communication]


def _opening(steps: StepsSpec, *, is_fresh: bool = True) -> list[str]:
    """Steps before anything is timed."""
    warmup = ["warmup"] * steps.warmup
    return ["first" if is_fresh else "warmup", *warmup, *["memory"] * steps.memory, *warmup]


def leads_to_memory(kinds: Sequence[str], index: int) -> bool:
    """Return whether a step ends its warm-up and the next one is recorded with the state that it leaves behind."""
    return list(kinds[index : index + 2]) == ["warmup", "memory"]


def unsettled_reason(trial: TrialSpec) -> str | None:
    """Reason why the step reported as `steady` is not yet like all that follow; None if it is."""
    settled = strategy_info(trial.strategy).settled_after_steps
    steady = trial.steps.warmup + trial.steps.memory  # its number from 0
    if steady >= settled:
        return None
    return (
        f"steps.warmup {trial.steps.warmup}: step {steady + 1} is reported as steady, but {trial.strategy} lays its "
        f"buffers out anew in step {settled}; use steps.warmup {settled - trial.steps.memory} or more"
    )


def plan_steps(trial: TrialSpec) -> Sequence[PlannedStep]:
    """Plan the steps of `trial`: `steps.timed` timed ones, and with a ramp additional memory steps."""
    planned: list[PlannedStep] = []
    seen = 0

    def take(kind: str) -> None:
        nonlocal seen
        planned.append(PlannedStep(kind, seen, step_tokens(trial, seen)))
        seen += planned[-1].tokens

    for kind in _opening(trial.steps):
        take(kind)
    watched = {step.tokens for step in planned if step.kind == "memory"}
    for _ in range(trial.steps.timed):
        if step_tokens(trial, seen) not in watched:
            watched.add(step_tokens(trial, seen))
            take("memory")
        take("timed")
    for _ in range(trial.steps.communication):
        take("communication")
    return planned


def step_tokens(trial: TrialSpec, seen_tokens: int) -> int:
    """Tokens, over all ranks, of the step after `seen_tokens`."""
    full = trial.global_batch_tokens
    return full if trial.batch_ramp is None else trial.batch_ramp.tokens_at(seen_tokens, full)
