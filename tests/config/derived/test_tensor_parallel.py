"""Which models tensor parallelism cuts, and who trains which samples then."""

import pytest

from tests.config.machines import CPU
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.batch import AUTOTP_SIZE, data_parallel_size, micro_batches_of_share, share_of
from zerobench.config.derived.tensor_parallel import tensor_parallel_refusal
from zerobench.config.rules.situation import Situation
from zerobench.config.rules.strategy_rules import STRATEGY_RULES
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Evidence, TrialSpec

LLAMA = {
    "model_type": "llama",
    "hidden_size": 96,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
    "intermediate_size": 120,
    "num_hidden_layers": 2,
    "vocab_size": 509,
}


def trial(strategy: str = "tensor", autotp: int | None = None, **config: object) -> TrialSpec:
    return TrialSpec(
        model=ModelSpec(name="m", hf_config={**LLAMA, **config}),
        strategy=strategy,
        gpus_per_node=4,
        micro_batch_size=2,
        gradient_accumulation_steps=3,
        precision="fp32",
        ds_config={} if autotp is None else {AUTOTP_SIZE: autotp},
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_a_llama_is_cut_among_ranks_that_divide_its_heads_whatever_its_vocabulary(parts):
    assert tensor_parallel_refusal(trial(), parts) is None


@pytest.mark.parametrize(
    ("config", "parts", "reason"),
    [
        ({}, 5, "12 attention heads cannot be divided among 5 ranks"),
        ({}, 4, "6 key and value heads cannot be divided among 4 ranks"),
        ({"intermediate_size": 121}, 2, r"121 columns of the MLP \(intermediate_size\) cannot be divided"),
        ({"tie_word_embeddings": True}, 2, "tie_word_embeddings true: .* set it to false"),
        ({"model_type": "gpt2"}, 2, "a model of type gpt2: one projection .* use one of type llama, mistral, qwen2"),
        ({"model_type": "qwen3"}, 2, "a model of type qwen3: query and key norms"),
        ({"model_type": "bloom"}, 2, "only Llama's block names are known"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(config, parts, reason):
    with pytest.raises(AssertionError, match=reason):
        assert not tensor_parallel_refusal(trial(**config), parts)


def test_ranks_that_divide_the_model_train_the_same_samples():
    assert data_parallel_size(trial()) == 1
    assert {share_of(trial(), rank) for rank in range(4)} == {0}


def test_ranks_that_divide_the_batch_train_a_share_each():
    assert data_parallel_size(trial("ddp")) == 4
    assert [share_of(trial("ddp"), rank) for rank in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(("strategy", "expected"), [("ddp", 3), ("zero3", 3), ("tensor", 12)])
def test_a_step_is_the_same_global_batch_under_every_strategy(strategy, expected):
    spec = trial(strategy)
    assert micro_batches_of_share(spec) == expected
    seen = micro_batches_of_share(spec) * spec.micro_batch_size * data_parallel_size(spec)
    assert seen == spec.global_batch_size


def test_groups_of_neighbours_under_autotp_train_the_same_samples():
    spec = trial("zero1", autotp=2)
    assert [share_of(spec, rank) for rank in range(4)] == [0, 0, 1, 1]
    assert micro_batches_of_share(spec) == 6
    config = build_ds_config(spec)
    assert config["gradient_accumulation_steps"] == 6
    assert config["tensor_parallel"] == {"autotp_size": 2}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (trial("zero1", autotp=3), "4 ranks cannot be divided into groups of 3"),
        (trial("zero3", autotp=2), "a vocabulary of 509 splits unevenly"),
        (trial("zero1", autotp=2), "a vocabulary of 509 splits unevenly"),
        (
            trial("zero1", autotp=2, vocab_size=512).model_copy(update={"evidence": Evidence.SOLO}),
            "AutoTP is not predicted",
        ),
        (trial("zero1", autotp=2, vocab_size=512, model_type="gpt2"), "a model of type gpt2"),
    ],
)
def test_autotp_is_refused_with_the_reason(spec, reason):
    why = STRATEGY_RULES["autotp_not_divisible"](Situation(spec, CPU, None))
    assert why is not None
    assert reason in why


@pytest.mark.parametrize("strategy", ["zero0", "zero1", "zero2", "zero3"])
def test_autotp_of_a_llama_is_not_refused_at_any_stage(strategy):
    spec = trial(strategy, autotp=2, vocab_size=512)
    assert STRATEGY_RULES["autotp_not_divisible"](Situation(spec, CPU, None)) is None
