"""tf.distribute: real processes in an environment without torch, held against the same single process."""

import numpy as np
import pytest

from tests.conftest import memory_row
from tests.tools.at_least_one import at_least_one
from zerobench.common.environments import environment
from zerobench.common.vocabulary import Category, Phase, Status
from zerobench.config.derived.roles import Role
from zerobench.config.trial.trial import TfStrategy
from zerobench.report.figures.server import sides

SWEEP = """
name: tensorflow
axes:
  model: {{family: {family}, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509,
          max_position_embeddings: 64}}
  strategy: [single, tensorflow]
  tf_strategy: [multi-worker-mirrored, mirrored, parameter-server]
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
INCLUDE = """
  - {strategy: tensorflow, tf_strategy: multi-worker-mirrored, world_size: 1, gradient_accumulation_steps: 4}
  - {strategy: tensorflow, tf_strategy: parameter-server, world_size: 4, gradient_accumulation_steps: 3,
     micro_batch_size: 1}
  - {strategy: single, world_size: 4, gradient_accumulation_steps: 3, micro_batch_size: 1}
"""
STATES = (Category.PARAMETERS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
REPLICATED = (TfStrategy.MULTI_WORKER_MIRRORED, TfStrategy.MIRRORED)


@pytest.fixture(scope="module")
def with_adamw(own_sweep):
    return own_sweep(SWEEP.format(family="llama", optimizer="adamw", rate=1e-3, include=INCLUDE))


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
    references = {t.spec.global_batch_size: t for t in swept.trials(strategy="single")}
    for trial in swept.trials(strategy="tensorflow"):
        reference = references[trial.spec.global_batch_size]
        assert reference.ranks[0].losses[-1] < reference.ranks[0].losses[0] - 0.01
        assert distance(trial, reference) <= 5e-6, trial.spec.trial_id


def test_losses_agree_with_tensorflow_alone(with_adamw):
    alone = with_adamw.trial(strategy="tensorflow", gpus_per_node=1)
    for trial in at_least_one(with_adamw.trials(strategy="tensorflow", gpus_per_node=2)):
        assert distance(trial, alone) <= 5e-6, trial.spec.trial_id


def test_every_process_has_a_record_with_the_same_losses(swept):
    for several in swept.trials(strategy="tensorflow", gpus_per_node=2):
        if several.spec.tf_strategy is not TfStrategy.MIRRORED:
            assert [rank.rank for rank in several.ranks] == [0, 1]
            assert several.ranks[0].losses == several.ranks[1].losses
            assert {len(rank.step_times) for rank in several.ranks} == {4}
    [one] = swept.trial(tf_strategy=TfStrategy.MIRRORED, gpus_per_node=2).ranks
    assert one.effective_config["tensorflow"]["replicas_in_this_process"] == 2


def test_a_step_has_a_time_and_its_phases_which_are_one_graph_have_none(with_adamw):
    for trial in at_least_one(with_adamw.trials(strategy="tensorflow")):
        for time in at_least_one(time for rank in trial.ranks for time in rank.step_times):
            assert time.step_s > 0
            assert (time.forward_s, time.backward_s, time.optimizer_s) == (None, None, None)


def test_variables_are_named_to_the_byte_and_the_rest_is_said_to_have_no_name(with_adamw):
    trials = with_adamw.trials(strategy="tensorflow")
    for trial in at_least_one(one for one in trials if one.spec.tf_strategy in REPLICATED):
        for rank in at_least_one(trial.ranks):
            replicas = rank.effective_config["tensorflow"]["replicas_in_this_process"]
            for category in STATES:
                row = memory_row(rank, Phase.STEP, category)
                assert row.live_bytes == 4 * rank.parameters.total * replicas, category
            named = [row for row in rank.memory if (row.step, row.phase, row.place) == ("steady", "step", "device")]
            total = memory_row(rank, Phase.STEP, Category.TOTAL)
            assert sum(row.at_peak_bytes or 0 for row in named) == 2 * (total.at_peak_bytes or 0)
            assert memory_row(rank, Phase.STEP, Category.UNATTRIBUTED).live_bytes > 0
            assert any("only variables are named" in note for note in rank.notes)


def test_the_server_holds_all_variables_and_the_workers_none(with_adamw):
    for trial in at_least_one(with_adamw.trials(strategy="tensorflow", tf_strategy=TfStrategy.PARAMETER_SERVER)):
        server, *workers = trial.ranks
        assert [server.role, *{worker.role for worker in workers}] == [Role.SERVER, Role.WORKER]
        for category in (*STATES, Category.GRADIENTS):
            assert memory_row(server, Phase.STEP, category).live_bytes == 4 * server.parameters.total, category
        for worker in workers:
            assert {row.category for row in worker.memory if row.place == "device"} == {"unattributed", "total"}
            assert any("has no variables" in note for note in worker.notes)
        assert (server.flops_per_step, server.learning_rates) != (None, [])
        assert all(worker.flops_per_step and not worker.learning_rates for worker in workers)


def test_both_sides_of_the_server_have_a_peak_and_a_time_and_no_bytes_where_nobody_counted(with_adamw):
    trial = with_adamw.trial(strategy="tensorflow", tf_strategy=TfStrategy.PARAMETER_SERVER, gpus_per_node=2)
    server, worker = sides(trial)
    assert (server.role, worker.role) == (Role.SERVER, Role.WORKER)
    assert all((server.peak_bytes, worker.peak_bytes, server.step_s, worker.step_s))
    assert server.states is not None
    assert server.states.total_bytes - 16 * trial.ranks[0].parameters.total == 12  # counters of Keras' optimizer
    assert worker.states is None
    assert (server.sent_bytes, server.received_bytes, worker.sent_bytes, server.staleness) == (None,) * 4


def test_the_record_says_in_which_environment(with_adamw):
    asked = {"tf_strategy": TfStrategy.MULTI_WORKER_MIRRORED, "strategy": "tensorflow", "gpus_per_node": 2}
    [rank, _] = with_adamw.trial(**asked).ranks
    own = rank.effective_config["environment"]
    assert own["executable"] == str(environment("tensorflow").python)
    assert own["tensorflow-cpu"].startswith("2.21")


def test_ranks_that_fail_are_typed_outcomes_and_the_sweep_goes_on(own_sweep, tmp_path_factory):
    short = tmp_path_factory.mktemp("data") / "short.npy"
    np.save(short, np.arange(10))
    text = SWEEP.format(family="gpt2", optimizer="sgd", rate=0.1, include="[]")
    only = text.replace("[single, tensorflow]", "tensorflow").replace(
        "[multi-worker-mirrored, mirrored, parameter-server]", "[mirrored, parameter-server]"
    )
    trials = list(own_sweep(only + f"data: {{kind: tokens, path: {short}}}\n").run.trials())
    assert len(trials) == 2
    for trial in trials:
        assert trial.record.status in {Status.CRASH, Status.LAUNCHER_FAULT}
        assert "10 tokens are fewer than one sequence of 64" in trial.record.model_dump_json()


WRONG = """
name: wrong
axes:
  model: {model_type: llama, name: biased, num_hidden_layers: 1, hidden_size: 32, intermediate_size: 64,
          num_attention_heads: 2, vocab_size: 97, max_position_embeddings: 64, attention_bias: true}
  strategy: [tensorflow, single]
  tf_strategy: [multi-worker-mirrored, parameter-server]
  world_size: 2
  sequence_length: 16
  precision: fp32
steps: {warmup: 0, timed: 1, memory: 1}
"""


def test_a_model_that_keras_has_not_is_a_crash_with_the_ranks_own_words_and_what_comes_after_it_runs(own_sweep):
    swept = own_sweep(WRONG)
    for trial in swept.trials(strategy="tensorflow"):
        assert trial.record.status is Status.CRASH
        assert "attention_bias True: the Keras model of llama has False" in (trial.record.reason or "")
    assert swept.trial(strategy="single").record.status is Status.COMPLETED
