"""The lists of parameter tensors against transformers' own models, built without memory on the meta device."""

from typing import Any

import pytest

from tests.config.models.transformers_models import CONFIGS, GATED, built, configuration_name
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.models.presets import PRESETS, resolve_model
from zerobench.config.models.tensors import matrices, named_weights, parameter_tensors
from zerobench.config.trial.model import ModelSpec

NO_LIST = {"mixtral", "gemma2", "phi3"}
"""Types whose parameters are counted and not listed: the formula world refuses them."""


@pytest.mark.parametrize(
    "config", [config for config in CONFIGS if config["model_type"] not in NO_LIST], ids=configuration_name
)
def test_the_tensors_are_those_of_the_model_in_the_models_order(config: dict[str, Any]) -> None:
    spec = resolve_model(config)
    named = [(name, parameter.numel()) for name, parameter in built(spec).named_parameters()]
    assert list(parameter_tensors(spec)) == [size for _, size in named]
    assert [(weight.name, weight.size) for weight in named_weights(spec).all] == named


@pytest.mark.parametrize("tied", [True, False])
def test_tokens_are_multiplied_with_the_head_once_tied_or_not_and_never_with_positions(tied: bool) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 300}
    found = matrices(resolve_model(config | {"tie_word_embeddings": tied}))
    assert (found.block, found.num_blocks, found.outside) == ((64 * 192, 64 * 64, 64 * 256, 256 * 64), 2, 300 * 64)


@pytest.mark.parametrize("name", [name for name in PRESETS if resolve_model(name).model_type in NO_LIST])
def test_a_preset_without_a_list_of_tensors_is_refused_by_the_formula_world(name: str) -> None:
    with pytest.raises(UserError, match="has no closed form"):
        parameter_tensors(resolve_model(name))


def test_an_architecture_without_a_closed_form_is_refused_in_one_line() -> None:
    with one_line(match=r"^model: 'mamba' \(mamba\) has no closed form .*choices: "):
        parameter_tensors(ModelSpec(name="mamba", hf_config={"model_type": "mamba"}))


def test_a_pattern_freezes_the_weights_in_whose_name_it_is_found() -> None:
    spec = resolve_model(GATED | {"model_type": "llama"})
    found = named_weights(spec, r"embed_tokens|layers\.[01]\.|norm")
    trained = {weight.name for weight in found.all if weight.is_trained}
    parts = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    assert trained == {f"model.layers.2.{part}.weight" for part in parts} | {"lm_head.weight"}
    assert all(weight.is_trained for weight in named_weights(spec).all)
    assert [named_weights(spec, pattern).first_passed for pattern in (None, r"embed_|layers\.[01]\.", r"model\.")] == [
        0,
        2,
        3,
    ]
