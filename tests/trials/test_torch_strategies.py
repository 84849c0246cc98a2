"""DDP and FSDP2 in every world: what one process plays, and what no tensor backs, is what real ranks measured."""

from collections.abc import Callable

import pytest

from tests.conftest import Swept, memory_row
from tests.tools.rank_memory import FEW_BYTES, unnamed
from zerobench.records import Category, Phase, Place, RankRecord, Status, StepKind
from zerobench.spec.trial import Evidence, Offload

SWEEP = """
name: torch-strategies
axes:
  model: {family: llama, name: tiny, num_layers: 4, hidden_size: 128, num_heads: 4, vocab_size: 1024,
          max_position_embeddings: 64}
  strategy: [ddp, fsdp]
  evidence: [measured, solo, simulated, formula]
  world_size: 2
  micro_batch_size: 2
  sequence_length: 64
  precision: bf16
  bucket_bytes: 500_000
include:
  - {strategy: fsdp, offload_optimizer: cpu, offload_param: cpu, reshard_after_forward: false}
steps: {warmup: 1, timed: 1, memory: 1}
"""
CELLS = [("ddp", Offload.NONE), ("fsdp", Offload.NONE), ("fsdp", Offload.CPU)]
STATES_AND_BUFFERS = (
    Category.PARAMETERS,
    Category.GRADIENTS,
    Category.MASTER_WEIGHTS,
    Category.FIRST_MOMENT,
    Category.SECOND_MOMENT,
    Category.REDUCE_BUFFERS,
    Category.ALL_GATHER_BUFFERS,
    Category.GATHERED_PARAMETERS,
    Category.MODEL_BUFFERS,
)
MODEL_STATES = STATES_AND_BUFFERS[:5]
INSTANTS = [(StepKind.FIRST, Phase.INIT)] + [
    (step, phase) for step in StepKind for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
]

Worlds = dict[Evidence, RankRecord]


@pytest.fixture(scope="module")
def swept(forked_sweep: Callable[..., Swept]) -> Swept:
    return forked_sweep(SWEEP)


@pytest.fixture(params=CELLS, ids=[f"{strategy}-{offload}" for strategy, offload in CELLS])
def worlds(request: pytest.FixtureRequest, swept: Swept) -> Worlds:
    """Rank 0 of one cell in each world."""
    strategy, offload = request.param
    found = swept.trials(strategy=strategy, offload_param=offload)
    assert {trial.record.status for trial in found} == {Status.COMPLETED}, swept.output
    assert len({trial.spec.config_hash for trial in found}) == 1
    return {trial.spec.evidence: trial.ranks[0] for trial in found}


def live_bytes(rank: RankRecord, step: StepKind, phase: Phase, category: Category, place: Place) -> int:
    key = (step, phase, place, category)
    return sum(row.live_bytes for row in rank.memory if (row.step, row.phase, row.place, row.category) == key)


def peak(rank: RankRecord, step: StepKind, phase: Phase) -> int:
    """As far as a prediction can know it: without what kernels and collectives work in."""
    return memory_row(rank, phase, Category.TOTAL, step=step).foreseeable_peak_bytes or 0


def test_every_byte_at_every_peak_has_a_name_on_both_ranks_and_in_every_world(swept):
    for trial in swept.run.trials():
        for rank in trial.ranks:
            assert unnamed(rank) == [], trial.spec


def test_solo_equals_measured_to_the_byte_in_every_state_and_buffer(worlds):
    for step, phase in INSTANTS:
        for category in STATES_AND_BUFFERS:
            for place in (Place.DEVICE, Place.HOST):
                real, alone = (
                    live_bytes(worlds[world], step, phase, category, place)
                    for world in (Evidence.MEASURED, Evidence.SOLO)
                )
                assert alone == real, (step, phase, category, place)


def both_places(rank: RankRecord, step: StepKind, phase: Phase, category: Category) -> int:
    return sum(live_bytes(rank, step, phase, category, place) for place in (Place.DEVICE, Place.HOST))


@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.FORMULA])
def test_predicted_model_states_are_the_measured_ones_to_the_byte(worlds, evidence):
    for step, phase in INSTANTS:
        for category in MODEL_STATES:
            real, predicted = (
                both_places(worlds[world], step, phase, category) for world in (Evidence.MEASURED, evidence)
            )
            assert predicted == real, (step, phase, category)


@pytest.mark.parametrize(("evidence", "within"), [(Evidence.SIMULATED, 0.03), (Evidence.FORMULA, 0.15)])
def test_predicted_peaks_are_near_the_measured_ones_in_every_phase(worlds, evidence, within):
    on_host = live_bytes(worlds[Evidence.MEASURED], StepKind.STEADY, Phase.STEP, Category.FIRST_MOMENT, Place.HOST)
    for step, phase in INSTANTS:
        if (
            on_host and phase is Phase.STEP
        ):  # on CPU ranks what an update on the host makes is not told from the device's
            continue
        real, predicted = (peak(worlds[world], step, phase) for world in (Evidence.MEASURED, evidence))
        assert predicted == pytest.approx(real, rel=within, abs=FEW_BYTES), (step, phase)


def test_all_predictions_hear_the_same_collectives(worlds):
    heard = [
        {
            (row.phase, row.kind): row.message_bytes
            for row in worlds[evidence].collectives
            if row.step is StepKind.STEADY and row.phase is not Phase.STEP  # a norm over parts is a few bytes
        }
        for evidence in (Evidence.SOLO, Evidence.SIMULATED, Evidence.FORMULA)
    ]
    assert heard[0]
    assert heard[0] == heard[1] == heard[2]


def test_offloaded_states_lie_on_the_host_in_every_world(swept):
    for trial in swept.trials(offload_param=Offload.CPU):
        [rank, *_] = trial.ranks
        assert rank.parameters is not None
        for category in (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
            held = live_bytes(rank, StepKind.STEADY, Phase.STEP, category, Place.HOST)
            assert held == 4 * rank.parameters.total / 2, (trial.spec.trial_id, category)
            assert not live_bytes(rank, StepKind.STEADY, Phase.STEP, category, Place.DEVICE)


def test_a_16_bit_model_under_fsdp_is_kept_as_fp32_masters_alone(worlds):
    rank = worlds[Evidence.MEASURED]
    if rank.effective_config.get("fsdp"):
        assert not both_places(rank, StepKind.STEADY, Phase.STEP, Category.PARAMETERS)
        assert "param_dtype=torch.bfloat16" in rank.effective_config["fsdp"]["mp_policy"]
        assert rank.effective_config["fsdp"]["blocks"] == 4
