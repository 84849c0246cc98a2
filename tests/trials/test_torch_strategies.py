"""DDP and FSDP2 in every world: what one process plays, and what no tensor backs, is what real ranks measured."""

from collections.abc import Callable

import pytest

from tests.conftest import Swept, memory_row
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import FEW_BYTES, live_bytes
from tests.trials.worlds import BUFFERS, INSTANTS, MODEL_STATES, Worlds, check_same_bytes, in_each_world, nameless
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.trial import Evidence, Offload
from zerobench.records.records import RankRecord

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


@pytest.fixture(scope="module")
def swept(forked_sweep: Callable[..., Swept]) -> Swept:
    return forked_sweep(SWEEP)


@pytest.fixture(params=CELLS, ids=[f"{strategy}-{offload}" for strategy, offload in CELLS])
def worlds(request: pytest.FixtureRequest, swept: Swept) -> Worlds:
    strategy, offload = request.param
    return in_each_world(swept, strategy=strategy, offload_param=offload)


def peak(rank: RankRecord, step: StepKind, phase: Phase) -> int:
    """As far as a prediction can know it: without what kernels and collectives work in."""
    return memory_row(rank, phase, Category.TOTAL, step=step).foreseeable_peak_bytes or 0


def test_every_byte_at_every_peak_has_a_name_on_both_ranks_and_in_every_world(swept):
    assert nameless(swept) == []


def test_solo_equals_measured_to_the_byte_in_every_state_and_buffer(worlds):
    check_same_bytes(worlds, Evidence.SOLO, MODEL_STATES + BUFFERS, [[Place.DEVICE], [Place.HOST]])


@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.FORMULA])
def test_predicted_model_states_are_the_measured_ones_to_the_byte(worlds, evidence):
    check_same_bytes(worlds, evidence)


@pytest.mark.parametrize(("evidence", "within"), [(Evidence.SIMULATED, 0.03), (Evidence.FORMULA, 0.15)])
def test_predicted_peaks_are_near_the_measured_ones_in_every_phase(worlds, evidence, within):
    on_host = live_bytes(worlds[Evidence.MEASURED], Category.FIRST_MOMENT, Phase.STEP, places=[Place.HOST])
    for step, phase in at_least_one(INSTANTS):
        if on_host and phase is Phase.STEP:
            continue  # on CPU ranks what an update on the host makes is not told from the device's
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
    for trial in at_least_one(swept.trials(offload_param=Offload.CPU)):
        [rank, *_] = trial.ranks
        assert rank.parameters is not None
        for category in (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
            held = live_bytes(rank, category, Phase.STEP, places=[Place.HOST])
            assert held == 4 * rank.parameters.total / 2, (trial.spec.trial_id, category)
            assert not live_bytes(rank, category, Phase.STEP, places=[Place.DEVICE])


def test_a_16_bit_model_under_fsdp_is_kept_as_fp32_masters_alone(swept):
    for trial in at_least_one(swept.trials(strategy="fsdp", evidence=Evidence.MEASURED)):
        [rank, *_] = trial.ranks
        assert not live_bytes(rank, Category.PARAMETERS, Phase.STEP)
        assert "param_dtype=torch.bfloat16" in rank.effective_config["fsdp"]["mp_policy"]
        assert rank.effective_config["fsdp"]["blocks"] == 4
