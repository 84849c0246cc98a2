"""tf.distribute's strategies saved and resumed in fresh processes: the same losses, to the bit."""

import pytest

from tests.tools.at_least_one import at_least_one
from zerobench.common.vocabulary import Status
from zerobench.config.derived.checkpoint_size import checkpoint_bytes
from zerobench.config.trial.trial import TfStrategy

SWEEP = """
name: tensorflow-checkpoints
axes:
  model: {{family: llama, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 8192,
          max_position_embeddings: 64}}
  strategy: tensorflow
  world_size: 2
  micro_batch_size: 2
  gradient_accumulation_steps: 2
  sequence_length: 32
  precision: fp32
{trials}
hyperparameters: {{learning_rate: 1e-3}}
steps: {{warmup: 0, timed: 4, memory: 1}}
"""
WHOLE = """
  tf_strategy: [multi-worker-mirrored, mirrored, parameter-server]
  checkpoint: 2
"""
INTERRUPTED = """
  tf_strategy: multi-worker-mirrored
  checkpoint: {every_steps: 2, fault: {rank: 1, step: 5}}
include:
  - {tf_strategy: parameter-server, checkpoint: {every_steps: 2, fault: {rank: 0, step: 5}}}
  - {tf_strategy: parameter-server, checkpoint: {every_steps: 2, fault: {rank: 1, step: 5}}}
  - {tf_strategy: multi-worker-mirrored, checkpoint: {every_steps: 2, resume_world_size: 1}}
"""
EVERY = tuple(TfStrategy(name) for name in ("multi-worker-mirrored", "mirrored", "parameter-server"))


@pytest.fixture(scope="module")
def whole(own_sweep):
    """Of each strategy the trial that nothing interrupted, resumed on as many ranks."""
    swept = own_sweep(SWEEP.format(trials=WHOLE))
    trials = {trial.spec.tf_strategy: trial for trial in swept.run.trials()}
    assert {trial.record.status for trial in trials.values()} == {Status.COMPLETED}, swept.output
    return trials


@pytest.fixture(scope="module")
def interrupted(own_sweep):
    """Those of which a rank is killed, and one that is resumed on other ranks."""
    return own_sweep(SWEEP.format(trials=INTERRUPTED))


@pytest.mark.parametrize("tf_strategy", EVERY)
def test_what_is_saved_and_resumed_goes_on_with_the_same_losses_to_the_bit(whole, tf_strategy):
    trial = whole[tf_strategy]
    recovery = trial.record.recovery
    assert recovery.from_step == 4
    assert recovery.losses == trial.ranks[0].losses
    assert len(recovery.losses) == 6


@pytest.mark.parametrize("tf_strategy", EVERY)
def test_files_are_as_large_as_the_states_by_closed_form(whole, tf_strategy):
    trial = whole[tf_strategy]
    expected = checkpoint_bytes(trial.spec, trial.ranks[0].parameters.total)
    for rank in at_least_one(trial.ranks):
        assert [save.step for save in rank.checkpoints] == [2, 4]
        for save in rank.checkpoints:
            assert expected <= save.size_bytes <= 1.01 * expected
            assert save.seconds > 0
    for load in trial.record.recovery.loads:
        assert expected <= load.size_bytes <= 1.01 * expected


def test_a_rank_that_is_killed_costs_the_steps_since_the_checkpoint_and_no_more(whole, interrupted):
    killed = [trial for trial in interrupted.run.trials() if trial.spec.checkpoint.fault is not None]
    assert len(killed) == 3
    for trial in killed:
        fault, recovery = trial.spec.checkpoint.fault, trial.record.recovery
        assert trial.record.status is Status.COMPLETED, (trial.spec.trial_id, trial.record.reason)
        assert (recovery.killed_rank, recovery.steps_done, recovery.from_step) == (fault.rank, 5, 4)
        assert recovery.losses == whole[trial.spec.tf_strategy].ranks[0].losses


def test_another_number_of_processes_goes_on_within_the_order_of_additions(interrupted):
    [trial] = [one for one in interrupted.run.trials() if one.spec.checkpoint.resume_world_size == 1]
    assert trial.record.status is Status.COMPLETED, trial.record.reason
    assert len(trial.record.recovery.loads) == 1
    pairs = zip(trial.record.recovery.losses, trial.ranks[0].losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) <= 5e-6
