"""The pipeline with two and three real ranks over gloo; each of its stages played alone: test_sides.py."""

import pytest

from tests.rank.real_ranks import GPT2, LLAMA, Tiny, check_same_steps
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import live_bytes, moved_bytes, unnamed
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.derived.pipeline import micro_batches_in_flight
from zerobench.config.derived.pipeline_steps import pipeline_bytes_per_step
from zerobench.config.models.parameters import count_parameters

SIZES = LLAMA | {"vocab_size": 509, "num_hidden_layers": 4}
HIDDEN_BYTES = 32 * 64  # elements of one micro-batch's hidden states
STATES = (Category.PARAMETERS, Category.GRADIENTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
SCHEDULES = ("1f1b", "gpipe")
TINY = Tiny(SIZES, work={"strategy": "pipeline", "steps": {"warmup": 1, "timed": 2, "memory": 1}})
"""Two stages of two blocks each, four micro-batches a step."""
spec, single = TINY.spec, TINY.alone


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_take_the_steps_of_one_process(ran, schedule):
    ours = ran(spec(pipeline_schedule=schedule))
    check_same_steps(ours, ran(single()))
    assert ours[0].losses == ours[1].losses


@pytest.mark.parametrize("schedule", [*SCHEDULES, "deepspeed"])
def test_in_16_bits_every_schedule_loses_it_to_the_rounding_of_16_bits(ran, schedule):
    ours = ran(spec(precision="bf16", pipeline_schedule=schedule))
    check_same_steps(ours, ran(single(precision="bf16")), within=2e-3)
    for rank in ours:
        weights = rank.effective_config["pipeline"]["parameters"]
        assert live_bytes(rank, Category.PARAMETERS, Phase.STEP) == 2 * weights
        for category in (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
            assert live_bytes(rank, category, Phase.STEP) == 4 * weights, category
        assert unnamed(rank, share=0) == []


def test_three_stages_and_a_tied_embedding_lose_what_one_process_loses(ran):
    tied = {"config": {**GPT2, "n_layer": 3}, "optimizer": "sgd", "gpus_per_node": 3, "gradient_accumulation_steps": 1}
    check_same_steps(ran(spec(**tied)), ran(single(**tied)))


def test_each_rank_holds_its_stage_and_nothing_of_the_others_to_the_byte(ran):
    asked = spec()
    ranks = ran(asked)
    counts = count_parameters(asked.model)
    assert counts is not None
    block = (counts.attention + counts.mlp + counts.norms - 64) // 4
    own = [counts.token_embeddings + 2 * block, 2 * block + 64 + counts.head]
    assert [rank.effective_config["pipeline"]["parameters"] for rank in ranks] == own
    assert {rank.parameters.total for rank in ranks} == {counts.total}
    for rank, parameters in zip(ranks, own, strict=True):
        for category in STATES:
            phase = Phase.BACKWARD if category is Category.GRADIENTS else Phase.STEP
            assert live_bytes(rank, category, phase) == 4 * parameters, (rank.rank, category)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_passes_between_two_stages_is_the_hidden_states_and_their_gradients(ran, schedule):
    first, last = ran(spec(pipeline_schedule=schedule))
    passed = 4 * HIDDEN_BYTES * 4  # four micro-batches in fp32
    assert (moved_bytes(first, "send"), moved_bytes(first, "recv")) == (passed, passed)
    assert (moved_bytes(last, "send"), moved_bytes(last, "recv")) == (passed, passed)
    assert pipeline_bytes_per_step(spec(), 0) == pipeline_bytes_per_step(spec(), 1) == 2 * passed


def test_a_stage_keeps_the_activations_of_the_micro_batches_that_its_schedule_has_in_flight(ran):
    kept = {}
    for schedule in SCHEDULES:
        asked = spec(pipeline_schedule=schedule)
        for rank in ran(asked):
            rows = [row for row in rank.memory if row.category is Category.ACTIVATIONS and row.step is StepKind.STEADY]
            kept[schedule, rank.rank] = max(row.own_peak_bytes or 0 for row in rows)
            assert rank.effective_config["pipeline"]["micro_batches_in_flight"] == micro_batches_in_flight(
                asked, rank.rank
            )
    assert [micro_batches_in_flight(spec(pipeline_schedule=one), 0) for one in SCHEDULES] == [2, 4]
    assert kept["gpipe", 0] == pytest.approx(2 * kept["1f1b", 0], rel=0.05)
    assert kept["gpipe", 1] > 2 * kept["1f1b", 1]  # four against one, what a backward pass makes beside them


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_rank_tells_how_long_it_waited_within_each_timed_step(ran, schedule):
    for rank in at_least_one(ran(spec(pipeline_schedule=schedule))):
        assert rank.step_times
        for time in rank.step_times:
            others = time.forward_s + time.backward_s + time.optimizer_s
            assert time.wait_s == pytest.approx(time.step_s - others, abs=1e-6)
            assert 0 < time.wait_s < time.step_s
