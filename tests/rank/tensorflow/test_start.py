"""Weights, samples and learning rates for a rank without torch equal those of torch's own ranks."""

import json

import numpy as np
import pytest
import torch

from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import StepsSpec, TfStrategy, TrialSpec
from zerobench.rank.ledger.components import components_of
from zerobench.rank.loop.start_files import write_start
from zerobench.rank.tensorflow.launcher import KEY_VARIABLE, PORT_VARIABLE, tensorflow_environments
from zerobench.rank.tensorflow.start import read_start, samples_of
from zerobench.rank.training.data import micro_batches
from zerobench.rank.training.model import prepare_model
from zerobench.rank.training.schedule import learning_rate
from zerobench.rank.training.weights import fill_weights

TINY = {"family": "llama", "name": "tiny", "num_layers": 1, "hidden_size": 32, "num_heads": 2, "vocab_size": 97}


@pytest.fixture(scope="module")
def trial() -> TrialSpec:
    return TrialSpec(
        model=resolve_model({**TINY, "max_position_embeddings": 16}),
        strategy="tensorflow",
        gpus_per_node=2,
        micro_batch_size=2,
        gradient_accumulation_steps=3,
        sequence_length=16,
        precision="fp32",
        steps=StepsSpec(warmup=0, timed=1),
    )


@pytest.fixture(scope="module")
def start(trial, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    write_start(trial, folder)
    return read_start(folder)


def test_weights_are_those_of_torchs_ranks_bit_for_bit(trial, start):
    model = prepare_model(trial, torch.device("cpu"), trial.attention)()
    fill_weights(model, trial.hyperparameters.seed)
    parameters = dict(model.named_parameters())
    assert list(parameters) == list(start.parameters)
    assert all(np.array_equal(start.parameter(name), own.detach().numpy()) for name, own in parameters.items())
    assert np.array_equal(start.buffer("model.rotary_emb.inv_freq"), model.model.rotary_emb.inv_freq.numpy())


def test_what_a_parameter_is_for_is_told_by_the_modules_that_torch_built(trial, start):
    model = prepare_model(trial, torch.device("cpu"), trial.attention)()
    assert tuple(start.components) == start.parameters
    assert start.components == components_of(model)


def test_every_replica_gets_the_micro_batches_that_torchs_rank_gets(trial, start):
    for rank in range(2):
        theirs = torch.stack(list(micro_batches(trial, rank, trial.steps.total, 97))).numpy()
        mine = [samples_of(step, rank, 2, trial.micro_batch_size) for step in start.tokens()]
        assert np.array_equal(np.concatenate(mine), theirs)


def test_learning_rates_are_those_of_every_strategy(trial, start):
    rates = [learning_rate(step, trial.hyperparameters) for step in range(trial.steps.total)]
    assert list(start.learning_rates) == rates


def test_several_processes_find_each_other_by_tf_config_and_one_needs_none():
    first, second = tensorflow_environments(0, [4001, 4002], 4003)
    assert json.loads(second["TF_CONFIG"]) == {
        "cluster": {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]},
        "task": {"type": "worker", "index": 1},
    }
    assert PORT_VARIABLE not in first
    [alone] = tensorflow_environments(0, [4001], 4003)
    assert "TF_CONFIG" not in alone


def test_rank_0_of_a_parameter_server_is_its_server_and_all_share_a_line_by_a_key_drawn_for_them():
    environments = tensorflow_environments(1, [4001, 4002, 4003], 4004)
    configs = [json.loads(one["TF_CONFIG"]) for one in environments]
    tasks = [(one["task"]["type"], one["task"]["index"]) for one in configs]
    assert tasks == [("ps", 0), ("worker", 0), ("worker", 1)]
    cluster = {"worker": ["127.0.0.1:4002", "127.0.0.1:4003"], "ps": ["127.0.0.1:4001"]}
    assert all(one["cluster"] == cluster for one in configs)
    [line] = {(one[PORT_VARIABLE], one[KEY_VARIABLE]) for one in environments}
    assert line[0] == "4004"
    assert line[1] != tensorflow_environments(1, [4001, 4002], 4004)[0][KEY_VARIABLE]


def test_mirrored_replicas_are_one_process(trial):
    from zerobench.launch.run.launcher import launched_processes

    assert launched_processes(trial) == 2
    assert launched_processes(trial.model_copy(update={"tf_strategy": TfStrategy.MIRRORED})) == 1
