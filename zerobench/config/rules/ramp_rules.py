"""Rules for growing batches: sizes that ranks cannot share, ramps that outlast the trial.

A ramped trial is compared with one of a fixed batch, so its last steps must have the full batch.
"""

from zerobench.config.derived.batch import data_parallel_size
from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.trial.batch_ramp import BatchRamp
from zerobench.config.trial.trial import Evidence, TrialSpec

_MOST_STEPS = 100_000
"""Steps to look ahead for the end of a ramp."""


def _ramp_needs_variable_accumulation(s: Situation) -> str | None:
    why = strategy_info(s.trial.strategy).fixed_batch
    if s.trial.batch_ramp is None or why is None:
        return None
    return f"batch_ramp at {s.trial.strategy}: {why}"


def _ramp_has_no_formula(s: Situation) -> str | None:
    if s.trial.batch_ramp is None or s.trial.evidence is not Evidence.FORMULA:
        return None
    return "batch_ramp formula: closed forms have a fixed batch; use simulated, or drop the ramp"


def _ramp_starts_above_batch(s: Situation) -> str | None:
    ramp, full = s.trial.batch_ramp, s.trial.global_batch_tokens
    if ramp is None or ramp.start_tokens < full:
        return None
    return f"batch_ramp: starts with {ramp.start_tokens} tokens; the full batch has {full} ({_product(s.trial)})"


def _ramp_not_divisible(s: Situation) -> str | None:
    ramp, full = s.trial.batch_ramp, s.trial.global_batch_tokens
    if ramp is None:
        return None
    share = s.trial.micro_batch_size * s.trial.sequence_length * data_parallel_size(s.trial)
    for name, tokens in (("start_tokens", ramp.start_tokens), ("increment_tokens", ramp.increment)):
        if tokens % share:
            return (
                f"batch_ramp: {name} {tokens} is not a whole number of micro-batches; use multiples of "
                f"{share} (micro_batch_size x sequence_length x {data_parallel_size(s.trial)} "
                "data-parallel ranks)"
            )
    if (full - ramp.start_tokens) % ramp.increment:
        return (
            f"batch_ramp: from {ramp.start_tokens} tokens in increments of {ramp.increment} never reaches "
            f"the {full} of the full batch ({_product(s.trial)})"
        )
    return None


def _ramp_outlasts_trial(s: Situation) -> str | None:
    ramp = s.trial.batch_ramp
    if ramp is None or plan_steps(s.trial)[-1].tokens == s.trial.global_batch_tokens:
        return None
    seen = plan_steps(s.trial)[-1].seen_tokens
    needed = _timed_steps_needed(s.trial, ramp)
    more = "" if needed is None else f"steps.timed to {needed} or more, or "
    return (
        f"batch_ramp over {ramp.over_tokens} tokens: the trial's last step comes after {seen}, before the "
        f"batch is full; set {more}over_tokens to {seen} or less"
    )


def _timed_steps_needed(trial: TrialSpec, ramp: BatchRamp) -> int | None:
    """Fewest timed steps with which the last one has the full batch; None if there are too many."""
    if ramp.over_tokens // ramp.start_tokens > _MOST_STEPS:
        return None
    most = ramp.over_tokens // ramp.start_tokens + 1
    longer = trial.model_copy(update={"steps": trial.steps.model_copy(update={"timed": most})})
    timed = [step.tokens for step in plan_steps(longer) if step.kind == "timed"]
    return timed.index(trial.global_batch_tokens) + 1


def _product(trial: TrialSpec) -> str:
    return (
        f"{trial.world_size} ranks x micro_batch_size {trial.micro_batch_size} x gradient_accumulation_steps "
        f"{trial.gradient_accumulation_steps} x sequence_length {trial.sequence_length}"
    )


RAMP_RULES = rules_of(globals())
"""Applied after the rules of strategies, in this order."""
