"""ZeRO++'s hpZ and MiCS's groups by four real ranks, two groups of two, and in the worlds that one process plays."""

from typing import Any

import pytest

from tests.conftest import memory_row
from tests.rank.real_ranks import LLAMA, RunTrial, Tiny, check_same_steps
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import live_bytes, unnamed
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.memory.record import formula_record
from zerobench.records.records import RankRecord

TINY = Tiny(LLAMA | {"vocab_size": 510}, work={"gpus_per_node": 4})
spec, alone = TINY.spec, TINY.alone
ELEMENTS = 2 * 510 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
RELEASES = {  # parameters are gathered for one module, and given back after it
    "zero_optimization.reduce_bucket_size": 10**6,
    "zero_optimization.stage3_prefetch_bucket_size": 0,
    "zero_optimization.stage3_max_live_parameters": 0,
    "zero_optimization.stage3_max_reuse_distance": 0,
    "zero_optimization.stage3_param_persistence_threshold": 0,
}
HPZ: dict[str, Any] = {"strategy": "zero3", "hpz_partition_size": 2, "ds_config": RELEASES}
MICS: dict[str, Any] = {"strategy": "fsdp", "mics_shard_size": 2}
STATES = (Category.PARAMETERS, Category.GRADIENTS, Category.MASTER_WEIGHTS, Category.FIRST_MOMENT)
INSTANTS = [(step, phase) for step in StepKind for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)]


def predicted(ran: RunTrial, evidence: Evidence, **fields: Any) -> RankRecord:
    """Rank 0 by a prediction."""
    trial = spec(evidence=evidence, **fields)
    return formula_record(trial) if evidence is Evidence.FORMULA else ran(trial)[0]


def moved(rank: RankRecord, *phases: Phase) -> dict[tuple[str, str, int, int | None], int]:
    """Message bytes of a steady step by phase, kind, ranks of the group and nodes of it; a norm is a few bytes."""
    return {
        (row.phase.value, row.kind, row.group_size, row.num_nodes): row.message_bytes
        for row in rank.collectives
        if row.step is StepKind.STEADY and row.phase in (phases or (Phase.FORWARD, Phase.BACKWARD))
    }


@pytest.mark.parametrize("how", [HPZ, MICS], ids=["hpz", "mics"])
def test_two_groups_of_two_ranks_take_the_steps_of_one_process(ran: RunTrial, how: dict[str, Any]):
    check_same_steps(ran(spec(**how)), ran(alone()))


@pytest.mark.parametrize("evidence", [Evidence.MEASURED, Evidence.SOLO, Evidence.SIMULATED])
@pytest.mark.parametrize("how", [HPZ, MICS], ids=["hpz", "mics"])
def test_every_byte_has_a_name_on_every_rank(ran: RunTrial, how: dict[str, Any], evidence: Evidence):
    for rank in at_least_one(ran(spec(evidence=evidence, **how))):
        assert unnamed(rank, share=0) == []


def test_hpz_keeps_a_second_copy_among_two_ranks_until_the_update(ran: RunTrial):
    for rank in at_least_one(ran(spec(**HPZ))):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            assert live_bytes(rank, Category.PARAMETERS, phase) == 4 * (ELEMENTS // 4 + ELEMENTS // 2)
        assert live_bytes(rank, Category.PARAMETERS, Phase.STEP) == 4 * ELEMENTS // 4
        assert live_bytes(rank, Category.FIRST_MOMENT, Phase.STEP) == 4 * ELEMENTS // 4
        assert rank.effective_config["zero_optimization"]["zero_hpz_partition_size"] == 2


def test_small_tensors_that_stay_gathered_have_a_second_copy_within_the_update_alone(ran: RunTrial):
    small = {"zero_optimization.reduce_bucket_size": 10**6}  # all tensors are, by DeepSpeed's own threshold
    for evidence in (Evidence.SIMULATED, Evidence.FORMULA):
        rank = predicted(ran, evidence, **{**HPZ, "ds_config": small})
        assert live_bytes(rank, Category.PARAMETERS, Phase.BACKWARD) == 4 * ELEMENTS // 4
        for step in StepKind:
            at_peak = memory_row(rank, Phase.STEP, Category.PARAMETERS, step=step).at_peak_bytes
            assert at_peak == 4 * (ELEMENTS // 4 + ELEMENTS // 2), evidence


def test_mics_divides_every_state_by_its_group_and_not_by_the_world(ran: RunTrial):
    ranks = ran(spec(**MICS))
    for category in (Category.PARAMETERS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
        held = [live_bytes(rank, category, Phase.STEP) for rank in ranks]
        assert held[:2] == held[2:]  # the second group has what the first has
        assert sum(held[:2]) == 4 * ELEMENTS
    assert ranks[0].effective_config["fsdp"]["mesh"] == [2, 2]


@pytest.mark.parametrize("evidence", [Evidence.SOLO, Evidence.SIMULATED, Evidence.FORMULA])
@pytest.mark.parametrize("how", [HPZ, MICS], ids=["hpz", "mics"])
def test_predicted_model_states_are_the_measured_ones_to_the_byte(
    ran: RunTrial, how: dict[str, Any], evidence: Evidence
):
    real, other = ran(spec(**how))[0], predicted(ran, evidence, **how)
    for step, phase in INSTANTS:
        for category in STATES:
            assert live_bytes(other, category, phase, step) == live_bytes(real, category, phase, step), (step, phase)


@pytest.mark.parametrize("evidence", [Evidence.SOLO, Evidence.SIMULATED, Evidence.FORMULA])
def test_hpz_gathers_from_all_ranks_once_a_step_and_within_the_group_afterwards(ran: RunTrial, evidence: Evidence):
    whole = 4 * ELEMENTS
    assert moved(predicted(ran, evidence, **HPZ)) == {
        ("forward", "all_gather", 4, 1): whole,
        ("forward", "all_gather", 2, 1): whole,  # the second micro-batch finds the copy
        ("backward", "all_gather", 2, 1): 2 * whole,
        ("backward", "reduce_scatter", 4, 1): 2 * whole,
    }


@pytest.mark.parametrize("evidence", [Evidence.SOLO, Evidence.SIMULATED, Evidence.FORMULA])
def test_mics_reduces_within_the_group_always_and_between_groups_once_a_step(ran: RunTrial, evidence: Evidence):
    seen = moved(predicted(ran, evidence, **MICS), Phase.BACKWARD)
    assert seen["backward", "reduce_scatter", 2, 1] == pytest.approx(2 * 4 * ELEMENTS, rel=0.01)  # rows are padded
    assert seen["backward", "all_reduce", 2, 1] == pytest.approx(4 * ELEMENTS // 2, rel=0.01)


def test_on_a_thousand_gpus_groups_of_eight_stay_in_a_node_and_their_sums_cross_them(ran: RunTrial):
    cluster = {"num_nodes": 128, "gpus_per_node": 8, "evidence": Evidence.SIMULATED, "prediction": {"gpu": "h200"}}
    cluster |= {"precision": "bf16", "gradient_accumulation_steps": 1}
    whole = 2 * ELEMENTS
    [hpz] = ran(spec(**{**HPZ, **cluster, "hpz_partition_size": 8}))
    seen = moved(hpz)
    assert seen["forward", "all_gather", 1024, 128] == pytest.approx(whole, rel=0.2)  # padded to 1024 ranks
    assert seen["backward", "all_gather", 8, 1] == pytest.approx(whole, rel=0.2)
    [mics] = ran(spec(**{**MICS, **cluster, "mics_shard_size": 8}))
    seen = moved(mics)
    assert seen["forward", "all_gather", 8, 1] == pytest.approx(whole, rel=0.2)
    assert seen["backward", "all_reduce", 128, 128] == pytest.approx(whole // 8, rel=0.2)
    assert live_bytes(mics, Category.MASTER_WEIGHTS, Phase.STEP) == pytest.approx(4 * ELEMENTS / 8, rel=0.2)


def test_quantized_weights_are_gathered_in_half_the_bytes_and_gradients_reduced_in_a_quarter(ran: RunTrial):
    cluster = {"num_nodes": 2, "gpus_per_node": 2, "evidence": Evidence.SIMULATED, "prediction": {"gpu": "h200"}}
    cluster |= {"strategy": "zero3", "precision": "fp16", "gradient_accumulation_steps": 1, "ds_config": RELEASES}
    cluster["config"] = LLAMA
    matrices = 2 * 512 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128)
    blocks = 2 * 512 + 2 * (4 * 64 + 3 * 128)  # of gradients: as many as a matrix is long or wide, whichever is more
    [rank] = ran(spec(**cluster, quantized_weights=True, quantized_gradients=True))
    seen = moved(rank)
    assert seen["forward", "all_gather", 4, 2] == pytest.approx(matrices, rel=0.01)  # a byte each, and few scales
    assert seen["backward", "all_to_all", 2, 1] == matrices / 2 + 4 * blocks  # half a byte each, and scales
    assert seen["backward", "all_to_all", 2, 2] == (matrices / 2 + 4 * blocks) / 2  # shared out among a node's ranks
    assert rank.effective_config["zero_optimization"]["zero_quantized_weights"]
