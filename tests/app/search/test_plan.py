"""From the words of a request to the trials that are to be predicted."""

from dataclasses import replace
from pathlib import Path

import pytest

from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Blocks


@pytest.mark.parametrize("name", ["llama-7b", "meta-llama/Llama-2-7b-hf"])
def test_a_models_name_where_a_sweeps_is_expected_is_the_model(name: str) -> None:
    by_place = read_plan(PlanRequest(sweep=name, gpus="8", gpu="h200", formula=True, sequence_length="512"))
    by_option = read_plan(PlanRequest(model=name, gpus="8", gpu="h200", formula=True, sequence_length="512"))
    assert by_place == by_option
    assert {item.trial.sequence_length for item in by_place.planned} == {512}


def test_a_path_of_a_transformers_config_is_a_model_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4}')
    plan = read_plan(
        PlanRequest(sweep=str(tmp_path / "config.json"), gpus="8", gpu="h200", formula=True, sequence_length="64")
    )
    assert {item.trial.model.hf_config["n_layer"] for item in plan.planned} == {2}


def test_a_sweep_stays_a_sweep() -> None:
    assert read_plan(PlanRequest(sweep="predicted-7b", formula=True)).name == "predicted-7b"


def test_a_name_that_is_almost_a_models_is_refused_with_the_model() -> None:
    with pytest.raises(UserError, match=r"'llama-7bb' is neither a model nor a sweep; did you mean llama-7b or "):
        read_plan(PlanRequest(sweep="llama-7bb", gpus="8", gpu="h200"))
    with pytest.raises(UserError, match=r"llama-7b.yaml': no such file"):
        read_plan(PlanRequest(sweep="llama-7b.yaml", gpus="8", gpu="h200"))
    with pytest.raises(UserError, match=r"sweep: 'trillionn'.*did you mean 'trillion'"):
        read_plan(PlanRequest(sweep="trillionn", formula=True))


@pytest.mark.parametrize(("model", "tokens"), [("gpt2-350m", 1024), ("gpt3-350m", 2048), ("llama-7b", 2048)])
def test_without_a_length_a_sequence_is_no_longer_than_the_model_takes(model: str, tokens: int) -> None:
    found = read_plan(PlanRequest(model=model, gpus="8", gpu="h100", stage="3", formula=True))
    assert {one.trial.sequence_length for one in found.planned} == {tokens}


@pytest.mark.parametrize(
    "asked",
    [
        PlanRequest(model="llama-1b", gpus="8", gpu="h200", formula=True),
        PlanRequest(sweep="predicted-7b", formula=True),
    ],
)
def test_whose_blocks_times_are_of_goes_with_each_trial(asked: PlanRequest) -> None:
    for blocks in Blocks:
        found = read_plan(replace(asked, blocks=blocks))
        assert {item.trial.prediction.blocks for item in found.planned} == {blocks}
    with pytest.raises(UserError, match=r"--blocks: 'fuse' is not known; did you mean 'fused'\? choices: t"):
        read_plan(replace(asked, blocks="fuse"))
