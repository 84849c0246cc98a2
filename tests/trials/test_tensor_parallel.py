"""Tensor parallelism by two real ranks and in every other world, and DeepSpeed's AutoTP beside it.

Its losses are held in test_parity.py, with a vocabulary that two ranks do not divide evenly.
"""

from collections.abc import Callable

import pytest

from tests.conftest import Swept, memory_row
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from tests.tools.rank_memory import apart, live_bytes
from tests.trials.worlds import WITHIN_STEPS, Worlds, check_same_bytes, in_each_world, nameless
from zerobench.common.vocabulary import Category, Phase, Status, StepKind
from zerobench.config.models.parameters import count_parameters
from zerobench.config.trial.trial import Evidence

MODEL = """{family: llama, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, num_kv_heads: 2, vocab_size: 512,
          max_position_embeddings: 64}"""
SWEEP = f"""
name: tensor
axes:
  model: {MODEL}
  strategy: tensor
  evidence: [measured, solo, simulated, formula]
  world_size: 2
  micro_batch_size: 2
  sequence_length: 64
  precision: fp32
include:
  - {{strategy: tensor, evidence: measured, world_size: 4}}
  - {{strategy: zero2, evidence: measured, ds_config: {{autotp_size: 2, reduce_bucket_size: 1e6}}}}
steps: {{warmup: 0, timed: 1, memory: 1}}
"""
IN_FP32 = (Category.PARAMETERS, Category.GRADIENTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)


@pytest.fixture(scope="module")
def swept(forked_sweep: Callable[..., Swept]) -> Swept:
    return forked_sweep(SWEEP)


@pytest.fixture(scope="module")
def worlds(swept: Swept) -> Worlds:
    return in_each_world(swept, gpus_per_node=2, strategy="tensor")


def test_every_byte_has_a_name_on_both_ranks_and_in_every_world(swept):
    assert nameless(swept, share=0) == []


def test_two_ranks_hold_half_of_every_matrix_with_its_gradients_and_moments(swept):
    trial = swept.trial(gpus_per_node=2, strategy="tensor", evidence=Evidence.MEASURED)
    counts = known(count_parameters(trial.spec.model))
    assert known(trial.ranks[0].parameters).total == counts.total
    for category in IN_FP32:
        phase = Phase.BACKWARD if category is Category.GRADIENTS else Phase.STEP
        held = [memory_row(rank, phase, category).live_bytes for rank in trial.ranks]
        assert sum(held) == 4 * (counts.total + counts.norms), category


@pytest.mark.parametrize("evidence", [Evidence.SOLO, Evidence.SIMULATED, Evidence.FORMULA])
def test_predicted_model_states_are_the_measured_ones_to_the_byte(worlds, evidence):
    check_same_bytes(worlds, evidence)


@pytest.mark.parametrize("evidence", [Evidence.SOLO, Evidence.SIMULATED, Evidence.FORMULA])
def test_predicted_peaks_are_within_three_percent_of_the_measured_ones(worlds, evidence):
    for step, phase in at_least_one(WITHIN_STEPS):
        real, predicted = (
            memory_row(worlds[world], phase, Category.TOTAL, step=step).at_peak_bytes
            for world in (Evidence.MEASURED, evidence)
        )
        assert predicted == pytest.approx(real, rel=0.03), (step, phase)


def test_collectives_are_those_of_the_megatron_paper_in_every_predicted_world(worlds):
    hidden, layers, micro_batches = 4 * 2 * 64 * 64, 2, 2  # bytes of b s h in fp32
    loss = 3 * 4 * 2 * 64
    expected = {
        (Phase.FORWARD, "all_gather"): (micro_batches, micro_batches * hidden),
        (Phase.FORWARD, "all_reduce"): (micro_batches * (2 * layers + 3), micro_batches * (2 * layers * hidden + loss)),
        (Phase.BACKWARD, "all_reduce"): (micro_batches * (2 * layers + 1), micro_batches * (2 * layers + 1) * hidden),
    }
    for evidence in (Evidence.SOLO, Evidence.SIMULATED, Evidence.FORMULA):
        heard = {
            (row.phase, row.kind): (row.calls, row.message_bytes)
            for row in worlds[evidence].collectives
            if row.step is StepKind.STEADY and row.phase is not Phase.STEP  # the norm of all gradients, four bytes
        }
        assert heard == expected, evidence


def test_more_ranks_than_key_and_value_heads_are_refused_before_launch(swept):
    refused = swept.trial(gpus_per_node=4).record
    assert refused.status is Status.SKIPPED
    assert "2 key and value heads cannot be divided among 4 ranks" in (refused.reason or "")


def test_autotp_takes_the_same_steps_with_a_whole_embedding(swept, worlds):
    autotp, tensor = swept.trial(strategy="zero2"), worlds[Evidence.MEASURED]
    assert autotp.record.status is Status.COMPLETED, autotp.record.reason
    for rank in autotp.ranks:
        assert apart(rank.losses, tensor.losses) <= 5e-6
        assert rank.parameters == tensor.parameters
        whole = 512 * 64  # the embedding, of which `tensor` holds a half
        held = live_bytes(rank, Category.PARAMETERS, Phase.STEP)
        assert held == live_bytes(tensor, Category.PARAMETERS, Phase.STEP) + 4 * whole // 2
