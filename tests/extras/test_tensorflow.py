"""tf.distribute: real processes in an environment without torch, held against the same single process."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import memory_row
from zerobench.environments import environment
from zerobench.records import Category, Phase, Status
from zerobench.spec.trial import TfStrategy

SWEEP = """
name: tensorflow
axes:
  model: {{family: {family}, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509,
          max_position_embeddings: 64}}
  strategy: [single, tensorflow]
  tf_strategy: [multi-worker-mirrored, mirrored]
  world_size: 2
  micro_batch_size: 2
  gradient_accumulation_steps: 2
  sequence_length: 64
  precision: fp32
  optimizer: {optimizer}
include: {include}
hyperparameters: {{learning_rate: {rate}}}
steps: {{warmup: 1, timed: 4, memory: 1}}
"""
ALONE = "[{strategy: tensorflow, world_size: 1, gradient_accumulation_steps: 4}]"


@pytest.fixture(scope="module")
def with_adamw(own_sweep):
    return own_sweep(SWEEP.format(family="llama", optimizer="adamw", rate=1e-3, include=ALONE))


@pytest.fixture(scope="module")
def with_sgd(own_sweep):
    return own_sweep(SWEEP.format(family="gpt2", optimizer="sgd", rate=0.1, include="[]"))


@pytest.fixture(params=["with_adamw", "with_sgd"])
def swept(request):
    return request.getfixturevalue(request.param)


def distance(one, other) -> float:
    pairs = zip(one.ranks[0].losses, other.ranks[0].losses, strict=True)
    return float(max(abs(a - b) for a, b in pairs))


def test_losses_agree_with_the_single_process_of_torch_to_5e_6(swept):
    assert {t.record.status for t in swept.run.trials()} == {Status.COMPLETED}, swept.output
    reference = swept.trial(strategy="single")
    assert reference.ranks[0].losses[-1] < reference.ranks[0].losses[0] - 0.01
    for trial in swept.trials(strategy="tensorflow"):
        assert distance(trial, reference) <= 5e-6, trial.spec.trial_id


def test_losses_agree_with_tensorflow_alone(with_adamw):
    alone = with_adamw.trial(strategy="tensorflow", gpus_per_node=1)
    for trial in with_adamw.trials(strategy="tensorflow", gpus_per_node=2):
        assert distance(trial, alone) <= 5e-6, trial.spec.trial_id


def test_every_process_has_a_record_with_the_same_losses(swept):
    several = swept.trial(strategy="tensorflow", tf_strategy=TfStrategy.MULTI_WORKER_MIRRORED, gpus_per_node=2)
    assert [rank.rank for rank in several.ranks] == [0, 1]
    assert several.ranks[0].losses == several.ranks[1].losses
    assert len(several.ranks[0].step_times) == 4
    [one] = swept.trial(tf_strategy=TfStrategy.MIRRORED).ranks
    assert one.effective_config["tensorflow"]["replicas_in_this_process"] == 2


def test_variables_are_named_to_the_byte_and_the_rest_is_said_to_have_no_name(with_adamw):
    for trial in with_adamw.trials(strategy="tensorflow"):
        for rank in trial.ranks:
            replicas = rank.effective_config["tensorflow"]["replicas_in_this_process"]
            for category in (Category.PARAMETERS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
                row = memory_row(rank, Phase.STEP, category)
                assert row.live_bytes == 4 * rank.parameters.total * replicas, category
            named = [row for row in rank.memory if (row.step, row.phase, row.place) == ("steady", "step", "device")]
            total = memory_row(rank, Phase.STEP, Category.TOTAL)
            assert sum(row.at_peak_bytes or 0 for row in named) == 2 * (total.at_peak_bytes or 0)
            assert memory_row(rank, Phase.STEP, Category.UNATTRIBUTED).live_bytes > 0
            assert any("only variables have names" in note for note in rank.notes)


def test_the_record_says_in_which_environment(with_adamw):
    [rank, _] = with_adamw.trial(
        tf_strategy=TfStrategy.MULTI_WORKER_MIRRORED, strategy="tensorflow", gpus_per_node=2
    ).ranks
    own = rank.effective_config["environment"]
    assert own["executable"] == str(environment("tensorflow").python)
    assert own["tensorflow-cpu"].startswith("2.21")


def test_a_start_that_fails_is_a_typed_outcome(own_sweep, tmp_path_factory):
    short = tmp_path_factory.mktemp("data") / "short.npy"
    np.save(short, np.arange(10))
    text = SWEEP.format(family="gpt2", optimizer="sgd", rate=0.1, include="[]")
    only = text.replace("[single, tensorflow]", "tensorflow").replace("[multi-worker-mirrored, mirrored]", "mirrored")
    [trial] = own_sweep(only + f"data: {{kind: tokens, path: {short}}}\n").run.trials()
    assert trial.record.status in {Status.CRASH, Status.LAUNCHER_FAULT}
    assert "10 tokens are fewer than one sequence of 64" in trial.record.model_dump_json()
