"""Horovod: two real ranks in an environment of their own, by the same records, ledger and parity as every strategy."""

import sys

import pytest

from tests.conftest import memory_row
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from tests.tools.rank_memory import unnamed
from zerobench.common.environments import environment
from zerobench.common.vocabulary import Category, Phase, Status, StepKind
from zerobench.config.derived.checkpoint_size import checkpoint_bytes
from zerobench.config.trial.trial import Compression
from zerobench.records.trials import recorded_grad_norms
from zerobench.report.figures.parity import ParityJudge

SWEEP = """
name: horovod
axes:
  model: {{family: llama, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509,
          max_position_embeddings: 64}}
  strategy: [single, ddp, horovod]
  world_size: 2
  micro_batch_size: 2
  gradient_accumulation_steps: 2
  sequence_length: 64
  precision: fp32
  optimizer: {optimizer}
include:
{include}
hyperparameters: {{learning_rate: {rate}}}
steps: {{warmup: 1, timed: 4, memory: 1}}
"""
INCLUDE = """
  - {strategy: horovod, compression: fp16}
  - {strategy: horovod, bucket_bytes: 100_000}
  - {strategy: horovod, world_size: 1, gradient_accumulation_steps: 4}
"""
STATES = (Category.PARAMETERS, Category.GRADIENTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)


@pytest.fixture(scope="module")
def with_adamw(own_sweep):
    return own_sweep(SWEEP.format(optimizer="adamw", rate=1e-3, include=INCLUDE))


@pytest.fixture(scope="module")
def with_sgd(own_sweep):
    return own_sweep(SWEEP.format(optimizer="sgd", rate=0.1, include="  - {strategy: horovod, bucket_bytes: 100_000}"))


@pytest.mark.parametrize("swept", ["with_adamw", "with_sgd"])
def test_losses_agree_with_the_single_process_to_5e_6(swept, request):
    swept = request.getfixturevalue(swept)
    assert {t.record.status for t in swept.run.trials()} == {Status.COMPLETED}, swept.output
    reference = swept.trial(strategy="single").ranks[0].losses
    assert reference[-1] < reference[0] - 0.01  # the model learns, so a wrong update would show
    for trial in swept.trials(strategy="horovod", compression=Compression.NONE):
        losses = trial.ranks[0].losses
        assert max(abs(a - b) for a, b in zip(losses, reference, strict=True)) <= 5e-6, trial.spec.trial_id


@pytest.mark.parametrize("swept", ["with_adamw", "with_sgd"])
def test_the_norm_of_the_averaged_gradients_is_that_of_the_single_process(swept, request):
    swept = request.getfixturevalue(swept)
    reference = swept.trial(strategy="single")
    norms = recorded_grad_norms(reference)
    for trial in at_least_one(swept.trials(strategy="horovod", compression=Compression.NONE)):
        assert recorded_grad_norms(trial) == pytest.approx(norms, rel=1e-5), trial.spec.trial_id
        parity = known(ParityJudge([reference, trial]).judge(trial))
        assert parity.norms_agree


def test_halved_gradients_are_off_by_a_distance_that_is_shown_and_not_judged(with_adamw):
    halved = with_adamw.trial(compression=Compression.FP16)
    parity = known(ParityJudge([with_adamw.trial(strategy="single"), halved]).judge(halved))
    assert 0 < parity.difference < 1e-3
    assert not parity.is_judged


def test_every_byte_at_every_peak_has_a_name_on_both_ranks(with_adamw):
    for trial in at_least_one(with_adamw.trials(strategy="horovod")):
        for rank in at_least_one(trial.ranks):
            assert unnamed(rank) == [], trial.spec.trial_id


def test_model_states_are_those_of_ddp_to_the_byte_at_the_peak_of_the_update(with_adamw):
    horovod = with_adamw.trial(strategy="horovod", compression=Compression.NONE, bucket_bytes=None, gpus_per_node=2)
    ddp = with_adamw.trial(strategy="ddp")
    for mine, other in at_least_one(zip(horovod.ranks, ddp.ranks, strict=True)):
        for category in STATES:
            bytes_of = [memory_row(rank, Phase.STEP, category).at_peak_bytes for rank in (mine, other)]
            assert bytes_of[0] == bytes_of[1] == 4 * mine.parameters.total, category


def test_what_is_sent_is_every_gradient_once_a_step(with_adamw):
    for compression, element in ((Compression.NONE, 4), (Compression.FP16, 2)):
        trial = with_adamw.trial(strategy="horovod", compression=compression, bucket_bytes=None, gpus_per_node=2)
        for rank in at_least_one(trial.ranks):
            [row] = [row for row in rank.collectives if row.step is StepKind.STEADY]
            assert (row.kind, row.phase, row.group_size) == ("all_reduce", Phase.BACKWARD, 2)
            assert row.message_bytes == element * rank.parameters.total


def test_the_record_says_in_which_environment_and_how_horovod_was_built(with_adamw):
    [rank, _] = with_adamw.trial(strategy="horovod", bucket_bytes=100_000).ranks
    own, horovod = rank.effective_config["environment"], rank.effective_config["horovod"]
    assert own["executable"] == str(environment("horovod").python) != sys.executable
    assert own["horovod"] == "0.28.1"
    assert (horovod["gloo_built"], horovod["mpi_built"], horovod["size"]) == (True, False, 2)
    assert horovod["fusion_threshold_bytes"] == 100_000
    assert any("fusion buffer, up to 100,000 bytes" in note for note in rank.notes)


WRONG = """
name: wrong
axes:
  model:
    - {model_type: llama, name: wrong, num_hidden_layers: 1, hidden_size: 32, intermediate_size: 64,
       num_attention_heads: 2, vocab_size: 97, max_position_embeddings: 64, hidden_act: no-such-function}
    - {model_type: llama, name: right, num_hidden_layers: 1, hidden_size: 32, intermediate_size: 64,
       num_attention_heads: 2, vocab_size: 97, max_position_embeddings: 64}
  strategy: horovod
  world_size: 2
  sequence_length: 16
  precision: fp32
steps: {warmup: 0, timed: 1, memory: 1}
"""


def test_ranks_that_fail_are_a_typed_outcome_with_their_own_words_and_the_sweep_goes_on(own_sweep):
    wrong, right = own_sweep(WRONG).run.trials()
    assert (wrong.record.status, right.record.status) == (Status.CRASH, Status.COMPLETED)
    assert "no-such-function" in (wrong.record.reason or "")


CHECKPOINTS = """
name: horovod-checkpoints
axes:
  model: {family: llama, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 8192,
          max_position_embeddings: 64}
  strategy: horovod
  world_size: 2
  micro_batch_size: 2
  gradient_accumulation_steps: 2
  sequence_length: 32
  precision: fp32
  checkpoint: [2, {every_steps: 2, fault: {rank: 1, step: 5}}, {every_steps: 2, resume_world_size: 1}]
hyperparameters: {learning_rate: 1e-3}
steps: {warmup: 0, timed: 4, memory: 1}
"""


@pytest.fixture(scope="module")
def saved(own_sweep):
    """Saved and resumed; with a rank killed; resumed on one rank."""
    swept = own_sweep(CHECKPOINTS)
    assert {t.record.status for t in swept.run.trials()} == {Status.COMPLETED}, swept.output
    by_fault = sorted(swept.run.trials(), key=lambda trial: str(trial.spec.checkpoint))
    return dict(zip(("whole", "killed", "on_one"), by_fault, strict=True))


def test_what_is_saved_and_resumed_goes_on_with_the_same_losses_to_the_bit(saved):
    whole = saved["whole"]
    expected = checkpoint_bytes(whole.spec, whole.ranks[0].parameters.total)
    for rank in whole.ranks:
        assert [save.step for save in rank.checkpoints] == [2, 4]
        assert all(expected <= save.size_bytes <= 1.01 * expected for save in rank.checkpoints)
    assert whole.record.recovery.from_step == 4
    assert whole.record.recovery.losses == whole.ranks[0].losses


def test_a_rank_that_is_killed_costs_the_steps_since_the_checkpoint_and_no_more(saved):
    recovery = saved["killed"].record.recovery
    assert (recovery.killed_rank, recovery.steps_done, recovery.from_step) == (1, 5, 4)
    assert recovery.losses == saved["whole"].ranks[0].losses


def test_one_rank_goes_on_where_two_left_off_within_the_order_of_additions(saved):
    on_one, losses = saved["on_one"].record.recovery, saved["whole"].ranks[0].losses
    assert len(on_one.loads) == on_one.world_size == 1
    assert max(abs(a - b) for a, b in zip(on_one.losses, losses, strict=True)) <= 5e-6
