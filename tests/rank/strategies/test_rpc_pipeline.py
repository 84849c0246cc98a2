"""Stages on real ranks over torch.distributed.rpc: losses, memory of each stage, what moves and who waits."""

from typing import Any

import pytest
import torch

from tests.conftest import memory_row
from tests.rank.real_ranks import LLAMA, Tiny, check_same_steps
from tests.rank.strategies.test_stages import job
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import FEW_BYTES, live_bytes, moved_bytes, unnamed
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.derived.pipeline_steps import passed_per_step
from zerobench.rank.ledger.recorder import Marks, PlainPhases
from zerobench.rank.strategies import rpc_pipeline
from zerobench.rank.strategies.rpc_stage import HeldStage
from zerobench.records.records import RankRecord

CONFIG = LLAMA | {"vocab_size": 509, "num_hidden_layers": 4}
ON_TWO: dict[str, Any] = {"gpus_per_node": 2, "gradient_accumulation_steps": 3}
TINY = Tiny(CONFIG, work={"strategy": "rpc-pipeline", "gpus_per_node": 3, "timeout_s": 30})
"""Six micro-batches a step; whoever waits for a rank that never answers gives up after four times the limit."""
spec, single = TINY.spec, TINY.alone
SGD: dict[str, Any] = {"optimizer": "sgd", "hyperparameters": {"learning_rate": 0.1, "gradient_clipping": 100.0}}
"""Its gradients are all below the limit, and stay as they are."""


def stage_weights_bytes(rank: RankRecord) -> int:
    return live_bytes(rank, Category.PARAMETERS, Phase.INIT, StepKind.FIRST)


TRIALS = [
    pytest.param({"optimizer": "adamw"}, id="adamw on 3"),
    pytest.param({**SGD, "activation_checkpointing": True, **ON_TWO}, id="sgd on 2, checkpointing"),
]


@pytest.mark.parametrize("fields", TRIALS)
def test_stages_take_the_steps_of_one_process_and_each_is_told_the_mean_that_the_last_computes(ran, fields):
    check_same_steps(ran(spec(**fields)), ran(single(**fields)))


def test_in_16_bits_they_take_them_to_the_rounding_of_16_bits(ran):
    check_same_steps(ran(spec(precision="bf16", **ON_TWO)), ran(single(precision="bf16")), within=5e-3)


def test_every_record_counts_the_whole_model_and_shares_the_work_of_a_step(ran):
    [alone] = ran(single())
    for rank in at_least_one(ran(spec())):
        assert rank.parameters == alone.parameters
        assert rank.flops_per_step == pytest.approx(alone.flops_per_step / 3)


def test_every_stage_holds_its_weights_gradients_and_moments_and_nobody_elses(ran):
    ranks = ran(spec())
    [alone] = ran(single())
    assert sum(map(stage_weights_bytes, ranks)) == stage_weights_bytes(alone) == 4 * alone.parameters.total
    for rank in ranks:
        weights = stage_weights_bytes(rank)
        assert live_bytes(rank, Category.GRADIENTS, Phase.BACKWARD) == weights
        assert live_bytes(rank, Category.GRADIENTS, Phase.STEP) == 0
        for category in (Category.PARAMETERS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
            assert live_bytes(rank, category, Phase.STEP) == weights, category


def test_in_16_bits_the_context_keeps_its_gradients_beside_the_fp32_ones_through_the_update(ran):
    for rank in at_least_one(ran(spec(precision="bf16", **ON_TWO))):
        weights = stage_weights_bytes(rank)
        assert live_bytes(rank, Category.MASTER_WEIGHTS, Phase.STEP) == 2 * weights
        assert live_bytes(rank, Category.GRADIENTS, Phase.BACKWARD) == weights
        row = memory_row(rank, Phase.STEP, Category.GRADIENTS)
        assert (row.live_bytes, row.own_peak_bytes) == (0, 3 * weights)


@pytest.mark.parametrize("fields", [*TRIALS, pytest.param({"precision": "bf16", **ON_TWO}, id="bf16 on 2")])
def test_every_byte_at_every_peak_has_a_name_though_other_threads_compute(ran, fields):
    for rank in at_least_one(ran(spec(**fields))):
        assert unnamed(rank) == [], rank.notes


def test_activations_of_all_micro_batches_are_kept_and_logits_by_the_last_stage_alone(ran):
    ranks, [alone] = ran(spec()), ran(single())
    kept = sum(live_bytes(rank, Category.ACTIVATIONS, Phase.FORWARD) for rank in ranks)
    assert kept > 5 * live_bytes(alone, Category.ACTIVATIONS, Phase.FORWARD)  # which keeps those of one of six
    logits = [live_bytes(rank, Category.LOGITS_AND_LOSS, Phase.FORWARD) for rank in ranks]
    assert logits[1] == 0
    assert logits[0] < FEW_BYTES < 6 * 4 * 32 * CONFIG["vocab_size"] <= logits[2]
    for rank in ranks:
        assert live_bytes(rank, Category.ACTIVATIONS, Phase.BACKWARD) == 0


def test_the_bytes_that_move_are_hidden_states_forth_and_back_to_the_byte(ran):
    ranks = ran(spec())
    for rank in ranks:
        passed = passed_per_step(spec(), rank.rank)
        assert (moved_bytes(rank, "send"), moved_bytes(rank, "recv")) == (passed.sent_bytes, passed.received_bytes)
        assert moved_bytes(rank, "send") > 0
    assert sum(moved_bytes(rank, "send") for rank in ranks) == sum(moved_bytes(rank, "recv") for rank in ranks)


def test_the_first_rank_drives_and_every_stage_says_what_it_runs_with(ran):
    for rank in at_least_one(ran(spec())):
        said = rank.effective_config["pipeline"]
        assert (said["stage"], said["drives"]) == (rank.rank, rank.rank == 0)
        assert said["micro_batches_in_flight"] == 6
        assert 4 * said["parameters"] == stage_weights_bytes(rank)
        assert rank.effective_config["optimizer"] == "AdamW"
        assert any("received tensors are unattributed until" in note for note in rank.notes)


def test_every_rank_tells_how_long_it_computed_nothing_within_each_timed_step(ran):
    for rank in at_least_one(ran(spec())):
        assert [0 < time.wait_s < time.step_s for time in rank.step_times] == [True] * 2, rank.rank
        assert all(min(time.forward_s, time.backward_s, time.optimizer_s) > 0 for time in rank.step_times)


def test_what_goes_wrong_in_a_stage_that_nobody_waits_for_ends_its_rank(monkeypatch):
    stage = HeldStage(job("llama"), 0, lambda *_: None)
    monkeypatch.setattr(rpc_pipeline, "_held", stage)
    no_token = torch.tensor([[10**6]])
    with pytest.raises(IndexError):
        rpc_pipeline._forward(0, no_token)
    with pytest.raises(IndexError):
        stage.follow(PlainPhases(Marks()))
