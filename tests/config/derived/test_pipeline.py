"""How blocks are divided among the stages of a pipeline."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from tests.config.machines import CPU
from tests.config.rules.refusals import check_refused, each_refused
from zerobench.common.errors import UserError
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.host_memory import host_state_bytes
from zerobench.config.derived.machine import Accelerator
from zerobench.config.derived.pipeline import (
    divide_blocks,
    micro_batches_in_flight,
    pipeline_refusal,
    stage_blocks,
)
from zerobench.config.derived.pipeline_steps import bubble_fraction
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import Skip, find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec


def trial(strategy: str = "pipeline", num_layers: int = 4, *, tied: bool = False, **fields: Any) -> TrialSpec:
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": num_layers}
    config |= {"vocab_size": 509, "tie_word_embeddings": tied}
    model = ModelSpec(name="m", hf_config=config)
    asked = {"gpus_per_node": 4, "gradient_accumulation_steps": 2, "precision": "fp32", "sequence_length": 32}
    return TrialSpec.model_validate({"model": model, "strategy": strategy, **asked, **fields})


def skip(**fields: Any) -> Skip | None:
    return find_skip(Situation(trial(**fields), CPU, None))


@pytest.mark.parametrize("num_stages", range(1, 13))
def test_every_block_is_in_one_stage_and_every_stage_has_one(num_stages):
    stages = divide_blocks([5] * 12, 7, 3, num_stages)
    assert [block for stage in stages for block in stage] == list(range(12))
    assert all(stages)
    assert len(stages) == num_stages


@pytest.mark.parametrize(("first", "last"), [(0, 0), (30, 30), (25, 0), (0, 37), (500, 500), (11, 12)])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_no_other_division_of_equal_blocks_has_a_smaller_largest_stage(first, last, num_stages):
    def largest(ends):
        sizes = [10 * (end - begin) for begin, end in zip([0, *ends], [*ends, 9], strict=True)]
        sizes[0] += first
        sizes[-1] += last
        return max(sizes)

    ours = divide_blocks([10] * 9, first, last, num_stages)
    assert largest([stage.stop for stage in ours][:-1]) == min(map(largest, combinations(range(1, 9), num_stages - 1)))


def test_unequal_blocks_are_divided_by_their_size_and_not_by_their_number():
    assert divide_blocks([100, 10, 10, 10, 10, 60], 0, 0, 2) == [range(1), range(1, 6)]


def test_of_equal_divisions_the_earlier_stages_have_more_blocks():
    assert divide_blocks([1, 1, 1], 0, 0, 2) == [range(2), range(2, 3)]


def test_a_hundred_and_twenty_six_blocks_over_sixty_three_stages_are_two_each():
    assert {len(stage) for stage in divide_blocks([7] * 126, 0, 0, 63)} == {2}


@pytest.mark.parametrize("num_stages", [0, 4])
def test_more_stages_than_blocks_and_none_are_an_error(num_stages):
    with pytest.raises(ValueError, match=f"3 blocks cannot be divided among {num_stages} stages"):
        divide_blocks([1, 1, 1], 0, 0, num_stages)


def test_a_model_is_refused_with_the_reason():
    def why(num_stages: int, **config: object) -> str | None:
        model = ModelSpec(name="m", hf_config={"model_type": "llama", "num_hidden_layers": 3, **config})
        return pipeline_refusal(TrialSpec(model=model, strategy="pipeline"), num_stages)

    assert why(3) is None
    assert "its 3 blocks cannot be divided among 4 stages" in (why(4) or "")
    assert "a model of type bloom" in (why(2, model_type="bloom") or "")


def test_a_pipeline_with_a_block_for_each_rank_is_not_refused():
    assert skip() is None


test_what_a_pipeline_cannot_do_is_refused_with_the_reason = each_refused(
    skip,
    ({"num_layers": 3}, "blocks_not_divisible", "its 3 blocks cannot be divided among 4 stages"),
    ({"gpus_per_node": 1}, "too_few_processes", "pipeline on 1 rank: it needs 2 or more"),
    ({"offload_optimizer": "cpu"}, "offload_needs_engine", "pipeline"),
    ({"compression": "fp16"}, "compression_needs_ddp", "pipeline"),
    (
        {"evidence": "formula", "pipeline_schedule": "deepspeed"},
        "deepspeed_pipeline_needs_ranks",
        "use 1f1b or gpipe",
    ),
    (
        {"pipeline_schedule": "deepspeed", "ds_config": {"tensor_parallel.autotp_size": 2}},
        "deepspeed_pipeline_cuts_no_matrices",
        "the stages use all ranks",
    ),
    (
        {"pipeline_schedule": "deepspeed", "precision": "fp16"},
        "deepspeed_pipeline_leaves_fp16_unscaled",
        "takes their norm on the first stage only",
    ),
)


def test_a_stage_of_1f1b_has_as_many_micro_batches_in_flight_as_stages_follow_and_gpipe_all():
    assert [micro_batches_in_flight(trial(), stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [micro_batches_in_flight(trial(pipeline_schedule="gpipe"), stage) for stage in range(4)] == [8] * 4


def test_the_bubble_shrinks_with_more_micro_batches():
    found = [bubble_fraction(trial(gradient_accumulation_steps=steps)) for steps in (1, 2, 8)]
    assert found == pytest.approx([3 / 7, 3 / 11, 3 / 35])


def test_ranks_that_divide_the_model_hold_its_states_once_together():
    processes = host_state_bytes(trial(), 0, Accelerator.CPU)
    for strategy in ("pipeline", "tensor"):
        assert host_state_bytes(trial(strategy), 1000, Accelerator.CPU) - processes == 16 * 1000
    assert host_state_bytes(trial("ddp"), 1000, Accelerator.CPU) - processes == 4 * 16 * 1000


@pytest.mark.parametrize(
    ("fields", "rule"),
    [({"evidence": "simulated"}, "deepspeed_pipeline_needs_ranks"), ({"tied": True}, "deepspeed_pipeline_unties")],
)
def test_what_deepspeeds_engine_cannot_do_is_refused_and_torchs_schedules_are_named(fields, rule):
    check_refused(skip(pipeline_schedule="deepspeed", **fields), rule, "use 1f1b")
    assert skip(**fields) is None


def test_deepspeeds_schedule_gets_a_config_of_stage_0_with_the_whole_batch_and_the_trials_clipping():
    config = build_ds_config(trial(pipeline_schedule="deepspeed"))
    assert config["zero_optimization"]["stage"] == 0
    assert config["gradient_accumulation_steps"] == 8
    assert config["train_batch_size"] == config["train_micro_batch_size_per_gpu"] * 8 == 8
    assert config["gradient_clipping"] == 1.0
    with pytest.raises(UserError, match="has no DeepSpeed configuration"):
        build_ds_config(trial())


def test_a_head_takes_as_many_blocks_from_the_last_stage_as_are_its_size() -> None:
    divided = {("llama-7b", 2): [16, 16], ("llama-7b", 4): [8] * 4, ("gpt2-350m", 4): [4, 8, 8, 4]}
    for (model, stages), blocks in (divided | {("llama-8b", 3): [10, 12, 10]}).items():
        assert [len(each) for each in stage_blocks(resolve_model(model), stages)] == blocks
