"""A batch that grows in tokens: every strategy takes the same steps at the same learning rate, and loses the same."""

from typing import Any

import pytest

from tests.rank.real_ranks import LLAMA, RunTrial, Tiny, check_same_steps
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import unnamed
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.training.schedule import planned_rate

RAMP = {"start_tokens": 64, "over_tokens": 512}
"""One micro-batch for each of two ranks at first, two, then three."""
TOKENS = [64, 64, 64, 64, 128, 128, 192, 192, 192, 192]
KINDS = ["first", "warmup", "memory", "warmup", "memory", "timed", "memory", "timed", "timed", "timed"]
STEADY_TOTAL = (Category.TOTAL, StepKind.STEADY, Place.DEVICE)
EXACT = ("ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "tensor", "parameter-server", "rpc-pipeline")
RATES = {"learning_rate": 0.1, "warmup_steps": 2, "decay_steps": 8}
RATES |= {"gradient_clipping": 100.0}  # what is clipped to one length takes the same step whatever its length was
WORK = {"gradient_accumulation_steps": 3, "batch_ramp": RAMP, "optimizer": "sgd", "hyperparameters": RATES}
WORK |= {"activation_checkpointing": True, "steps": {"warmup": 1, "timed": 4, "memory": 1}}
TINY = Tiny(LLAMA | {"vocab_size": 509}, work=WORK)
"""Two ranks that take three micro-batches of 32 tokens each, once the batch is full."""


def spec(strategy: str, **fields: Any) -> TrialSpec:
    """`single`: one process on the same batches."""
    return TINY.alone(**fields) if strategy == "single" else TINY.spec(strategy=strategy, **fields)


@pytest.mark.parametrize("strategy", EXACT)
def test_every_strategy_takes_the_steps_of_one_process_while_the_batch_grows(ran: RunTrial, strategy: str) -> None:
    check_same_steps(ran(spec(strategy)), ran(spec("single")))


@pytest.mark.parametrize("strategy", ["single", *EXACT])
def test_every_step_has_the_tokens_of_the_ramp_and_every_batch_a_peak_and_times(ran: RunTrial, strategy: str) -> None:
    for rank in at_least_one(ran(spec(strategy))):
        assert [batch.kind for batch in rank.batches] == KINDS
        assert [batch.tokens for batch in rank.batches] == TOKENS
        watched = [batch.device_peak_bytes for batch in rank.batches if batch.kind in {"first", "memory"}]
        assert all(watched)
        assert all(batch.device_peak_bytes is None for batch in rank.batches if batch.kind in {"warmup", "timed"})
        assert len(rank.step_times) == 4


@pytest.mark.parametrize("strategy", ["single", *EXACT])
def test_every_optimizer_steps_at_the_learning_rate_of_the_schedule(ran: RunTrial, strategy: str) -> None:
    trial = spec(strategy)
    expected = [planned_rate(trial, step) for step in plan_steps(trial)]
    assert expected[0] < expected[5] > expected[-1]  # it warms up and decays within these steps
    held = [rank.learning_rates for rank in ran(trial) if rank.learning_rates]
    assert held == [pytest.approx(expected, rel=1e-12)] * (1 if strategy in {"single", "parameter-server"} else 2)


def test_gradients_that_are_offloaded_are_accumulated_over_each_steps_own_micro_batches(ran: RunTrial) -> None:
    fields: dict[str, Any] = {"optimizer": "adamw", "hyperparameters": {"learning_rate": 1e-3}}
    check_same_steps(ran(spec("zero2", offload_optimizer="cpu", **fields)), ran(spec("single", **fields)))


@pytest.mark.parametrize("strategy", ["single", *EXACT])
def test_every_byte_at_every_peak_has_a_name_and_the_steady_step_is_the_full_batchs(
    ran: RunTrial, strategy: str
) -> None:
    for rank in at_least_one(ran(spec(strategy))):
        assert [row for row in unnamed(rank) if row.place is Place.DEVICE] == [], rank.notes
        totals = [row for row in rank.memory if (row.category, row.step, row.place) == STEADY_TOTAL]
        steady = max(row.at_peak_bytes or 0 for row in totals)
        [last] = [batch for batch in rank.batches if batch.kind == "memory" and batch.tokens == TOKENS[-1]]
        assert last.device_peak_bytes == steady
        assert not [row for row in rank.process_memory if row.step is StepKind.STEADY]  # malloc is loose by then


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_simulation_has_the_peak_of_each_size(ran: RunTrial, strategy: str) -> None:
    real = ran(spec(strategy))[0]
    [predicted] = ran(spec(strategy, evidence="simulated"))
    watched, theirs_watched = (
        [batch for batch in rank.batches if batch.kind in {"first", "memory"}] for rank in (predicted, real)
    )
    assert [batch.tokens for batch in watched] == [64, 64, 128, 192]
    for ours, theirs in zip(watched, theirs_watched, strict=True):
        assert (ours.kind, ours.tokens) == (theirs.kind, theirs.tokens)
        assert ours.device_peak_bytes == pytest.approx(theirs.device_peak_bytes, rel=0.03)
