"""Stages on real ranks over torch.distributed.rpc: losses, memory of each stage, what moves and who waits."""

from typing import Any

import pytest
import torch

from tests.tools.rank_memory import FEW_BYTES, live_bytes, unnamed
from tests.worker.test_stages import job
from zerobench.formulas.pipeline import passed_per_step
from zerobench.memory.recorder import Marks, PlainPhases
from zerobench.records import Category, Phase, RankRecord, Status, StepKind
from zerobench.spec.model import ModelSpec
from zerobench.spec.trial import TrialSpec
from zerobench.worker.strategies import rpc_pipeline
from zerobench.worker.strategies.rpc_stage import HeldStage

CONFIG: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 509, "max_position_embeddings": 64}
STEPS = {"warmup": 0, "timed": 2, "memory": 1}
ON_THREE: dict[str, Any] = {"gpus_per_node": 3, "gradient_accumulation_steps": 2}
ON_TWO: dict[str, Any] = {"gpus_per_node": 2, "gradient_accumulation_steps": 3}


def spec(strategy: str = "rpc-pipeline", **fields: Any) -> TrialSpec:
    """A trial of few and short sequences, six micro-batches a step."""
    is_sgd = fields.get("optimizer") == "sgd"  # whose gradients are all below the limit, and stay as they are
    rates = {"learning_rate": 0.1, "gradient_clipping": 100.0} if is_sgd else {"learning_rate": 1e-3}
    work = {"strategy": strategy, "sequence_length": 32, "precision": "fp32", "steps": STEPS, "hyperparameters": rates}
    work |= {"timeout_s": 30}  # whoever waits for a rank that never answers gives up after four times that
    return TrialSpec.model_validate({"model": ModelSpec(name="tiny", hf_config=CONFIG), **work, **ON_THREE, **fields})


def single(**fields: Any) -> TrialSpec:
    """One process on the global batch of `spec`."""
    return spec("single", **{**fields, "gpus_per_node": 1, "gradient_accumulation_steps": 6})


def moved(rank: RankRecord, *kinds: str) -> int:
    return sum(row.message_bytes for row in rank.collectives if row.step is StepKind.STEADY and row.kind in kinds)


def stage_weights_bytes(rank: RankRecord) -> int:
    return live_bytes(rank, Category.PARAMETERS, Phase.INIT, StepKind.FIRST)


TRIALS = [
    pytest.param({"optimizer": "adamw"}, id="adamw on 3"),
    pytest.param({"optimizer": "sgd", "activation_checkpointing": True, **ON_TWO}, id="sgd on 2, checkpointing"),
]


@pytest.mark.parametrize("fields", TRIALS)
def test_stages_lose_what_one_process_loses_to_5e_6(ran, fields):
    ours = ran(spec(**fields))
    assert {rank.status for rank in ours} == {Status.COMPLETED}
    reference = ran(single(**fields))[0].losses
    assert reference[-1] < reference[0] - 0.01  # the model learns, so a wrong update would show
    for rank in ours:  # each has been told the mean, though the last stage alone computes it
        assert max(abs(a - b) for a, b in zip(rank.losses, reference, strict=True)) <= 5e-6


def test_in_16_bits_they_lose_it_to_the_rounding_of_16_bits(ran):
    ours, reference = (ran(one)[0].losses for one in (spec(precision="bf16", **ON_TWO), single(precision="bf16")))
    assert ours[-1] < ours[0] - 0.01
    assert max(abs(a - b) for a, b in zip(ours, reference, strict=True)) <= 5e-3


def test_every_record_counts_the_whole_model_and_shares_the_work_of_a_step(ran):
    [alone] = ran(single())
    for rank in ran(spec()):
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
    for rank in ran(spec(precision="bf16", **ON_TWO)):
        weights = stage_weights_bytes(rank)
        assert live_bytes(rank, Category.MASTER_WEIGHTS, Phase.STEP) == 2 * weights
        assert live_bytes(rank, Category.GRADIENTS, Phase.BACKWARD) == weights
        [row] = [
            row
            for row in rank.memory
            if (row.category, row.phase, row.step) == (Category.GRADIENTS, Phase.STEP, StepKind.STEADY)
        ]
        assert (row.live_bytes, row.own_peak_bytes) == (0, 3 * weights)


@pytest.mark.parametrize("fields", [*TRIALS, pytest.param({"precision": "bf16", **ON_TWO}, id="bf16 on 2")])
def test_every_byte_at_every_peak_has_a_name_though_other_threads_compute(ran, fields):
    for rank in ran(spec(**fields)):
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
        assert (moved(rank, "send"), moved(rank, "recv")) == (passed.sent_bytes, passed.received_bytes)
        assert moved(rank, "send") > 0
    assert sum(moved(rank, "send") for rank in ranks) == sum(moved(rank, "recv") for rank in ranks)


def test_the_first_rank_drives_and_every_stage_says_what_it_runs_with(ran):
    for rank in ran(spec()):
        said = rank.effective_config["pipeline"]
        assert (said["stage"], said["drives"]) == (rank.rank, rank.rank == 0)
        assert said["micro_batches_in_flight"] == 6
        assert 4 * said["parameters"] == stage_weights_bytes(rank)
        assert rank.effective_config["optimizer"] == "AdamW"
        assert any("received tensors are unattributed until" in note for note in rank.notes)


def test_every_rank_tells_how_long_it_computed_nothing_within_each_timed_step(ran):
    for rank in ran(spec()):
        assert [0 < time.wait_s < time.step_s for time in rank.step_times] == [True] * STEPS["timed"], rank.rank
        assert all(min(time.forward_s, time.backward_s, time.optimizer_s) > 0 for time in rank.step_times)


def test_what_goes_wrong_in_a_stage_that_nobody_waits_for_ends_its_rank(monkeypatch):
    stage = HeldStage(job("llama"), 0, lambda *_: None)
    monkeypatch.setattr(rpc_pipeline, "_held", stage)
    no_token = torch.tensor([[10**6]])
    with pytest.raises(IndexError):
        rpc_pipeline._forward(0, no_token)
    with pytest.raises(IndexError):
        stage.follow(PlainPhases(Marks()))
