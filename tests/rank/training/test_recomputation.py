"""Selective activation checkpointing trains as without it, keeps what it says, and computes no more again."""

from typing import Any

import pytest
import torch

from tests.rank.real_ranks import GPT2, LLAMA, RunTrial, Tiny, check_same_steps
from tests.tools.rank_memory import flops_by_phase, live_bytes
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Phase, Place, Status
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory.record import formula_record
from zerobench.records.records import RankRecord
from zerobench.report.words.labels import labels, shared_lines

CONFIG = LLAMA | {"num_hidden_layers": 4, "num_key_value_heads": 2}
SMALL = {"zero_optimization.reduce_bucket_size": 10**6, "zero_optimization.stage3_param_persistence_threshold": 0}
TINY = Tiny(CONFIG, SMALL, {"micro_batch_size": 2, "sequence_length": 128})


def spec(asked: bool | str, config: dict[str, Any] = CONFIG, **fields: Any) -> TrialSpec:
    return TINY.spec(activation_checkpointing=asked, config=config, **fields)


def alone(asked: bool | str, **fields: Any) -> TrialSpec:
    return TINY.alone(activation_checkpointing=asked, **fields)


def kept_bytes(rank: RankRecord, category: Category = Category.ACTIVATIONS) -> int:
    """On the device at the end of the steady step's forward pass."""
    return live_bytes(rank, category, Phase.FORWARD, places=[Place.DEVICE])


def passes(rank: RankRecord) -> dict[Phase, float]:
    return {phase: flops for phase, flops in flops_by_phase(rank).items() if phase is not Phase.STEP}


@pytest.mark.parametrize(
    ("asked", "strategy"),
    [*(("ops", name) for name in ("ddp", "zero3", "fsdp", "tensor", "pipeline", "rpc-pipeline")), ("every-2", "zero3")],
)
def test_every_strategy_with_it_takes_the_steps_of_one_process_without(
    ran: RunTrial, asked: str, strategy: str
) -> None:
    check_same_steps(ran(spec(asked, strategy=strategy)), ran(alone(asked=False)))


PREDICTED = {"evidence": "simulated", "prediction": {"gpu": "H200 SXM"}, "precision": "bf16"}


@pytest.mark.parametrize(
    ("config", "asked"),
    [(CONFIG, "every-3"), (CONFIG, "ops"), (GPT2, "every-2"), (GPT2, "ops")],
    ids=["llama-every-3", "llama-ops", "gpt2-every-2", "gpt2-ops"],
)
def test_the_simulated_world_keeps_and_computes_what_the_closed_form_says(
    ran: RunTrial, config: dict[str, Any], asked: str
) -> None:
    trial = spec(asked, config, strategy="zero3", **PREDICTED)
    [found] = ran(trial)
    formula = formula_record(trial.model_copy(update={"evidence": Evidence.FORMULA}))
    assert kept_bytes(found) == pytest.approx(kept_bytes(formula), rel=0.01)
    assert passes(found) == passes(formula)
    assert kept_bytes(found, Category.UNATTRIBUTED) + kept_bytes(found, Category.TEMPORARIES) < 64


def test_a_real_rank_keeps_by_operation_what_a_simulated_one_does(ran: RunTrial) -> None:
    [real], [plain] = ran(alone("ops")), ran(alone(asked=False))
    [played], [played_plain] = (ran(alone(asked, evidence="simulated")) for asked in ("ops", False))
    # The simulated world leaves out the states of the random generator, one a block.
    assert kept_bytes(real) == kept_bytes(played) + 4 * torch.get_rng_state().nbytes
    assert kept_bytes(plain) == kept_bytes(played_plain) > 2 * kept_bytes(real)
    assert kept_bytes(real, Category.UNATTRIBUTED) == kept_bytes(plain, Category.UNATTRIBUTED)
    assert real.losses == plain.losses


def test_trials_are_named_by_it_and_older_ones_keep_their_hash() -> None:
    trials = [spec(asked, strategy="fsdp") for asked in (False, True, "every-2", "ops")]
    assert labels(trials) == ["fsdp", "ckpt", "ckpt=every-2", "ckpt=ops"]
    assert "activation checkpointing by operation" in shared_lines(trials[3:])[0]
    assert [trial.model_dump(mode="json")["activation_checkpointing"] for trial in trials[:2]] == [False, True]
    assert len({trial.config_hash for trial in trials}) == 4
    assert len({trial.parity_hash for trial in trials}) == 1


def test_a_model_whose_products_are_not_written_down_has_no_closed_form_by_operation() -> None:
    config = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    with pytest.raises(UserError, match="no formula for a model of type opt"):
        formula_record(spec("ops", config, strategy="zero1", **PREDICTED | {"evidence": "formula"}))


def test_stage_3_may_gather_otherwise_in_the_second_pass_than_in_the_first(ran: RunTrial) -> None:
    """Parameters of this size are gathered again, by operations that the first pass did not run."""
    large = GPT2 | {"n_embd": 2048, "n_head": 16, "n_layer": 9, "vocab_size": 50257}
    work = {"gpus_per_node": 8, "gradient_accumulation_steps": 1, "sequence_length": 1024}
    [found] = ran(Tiny(large, work=work).spec(strategy="zero3", activation_checkpointing="ops", **PREDICTED))
    assert found.status is Status.COMPLETED
    # What runs again is born where the model is, and not where the second pass is led.
    assert all((row.own_peak_bytes or 0) < 64 for row in found.memory if row.category is Category.UNATTRIBUTED)
