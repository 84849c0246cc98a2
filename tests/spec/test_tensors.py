"""The lists of parameter tensors against transformers' own models, built without memory on the meta device."""

from typing import Any

import pytest

from zerobench.errors import UserError
from zerobench.spec.model import ModelSpec
from zerobench.spec.parameters import count_parameters
from zerobench.spec.presets import PRESETS, resolve_model
from zerobench.spec.tensors import matrices, named_weights, parameter_tensors

SMALL = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
GATED = SMALL | {"intermediate_size": 112, "num_key_value_heads": 2}
OPT = SMALL | {"model_type": "opt", "ffn_dim": 128, "max_position_embeddings": 40}

CONFIGS: list[dict[str, Any]] = [
    {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2},
    {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "tie_word_embeddings": False, "n_inner": 100},
    GATED | {"model_type": "llama"},
    GATED | {"model_type": "llama", "tie_word_embeddings": True},
    GATED | {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    GATED | {"model_type": "mistral", "head_dim": 24},
    GATED | {"model_type": "qwen2"},
    GATED | {"model_type": "qwen3", "head_dim": 24, "attention_bias": True},
    SMALL | {"model_type": "gpt_neox", "intermediate_size": 112},
    SMALL | {"model_type": "gpt_neox", "intermediate_size": 112, "attention_bias": False, "tie_word_embeddings": True},
    OPT,
    OPT | {"word_embed_proj_dim": 32, "do_layer_norm_before": False},
    OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(map(str, config.values())))
def test_the_tensors_are_those_of_the_model_in_the_models_order(config: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = resolve_model(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**spec.hf_config))
    assert list(parameter_tensors(spec)) == [parameter.numel() for parameter in model.parameters()]
    named = [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    assert [(weight.name, weight.size) for weight in named_weights(spec).all] == named


@pytest.mark.parametrize("tied", [True, False])
def test_tokens_are_multiplied_with_the_head_once_tied_or_not_and_never_with_positions(tied: bool) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 300}
    found = matrices(resolve_model(config | {"tie_word_embeddings": tied}))
    assert (found.block, found.num_blocks, found.outside) == ((64 * 192, 64 * 64, 64 * 256, 256 * 64), 2, 300 * 64)


NO_LIST = {"mixtral", "gemma2", "phi3"}
"""Types whose parameters are counted and not listed: the formula world refuses them."""


@pytest.mark.parametrize("name", [name for name in PRESETS if resolve_model(name).model_type not in NO_LIST])
def test_the_tensors_of_each_preset_sum_to_its_parameters(name: str) -> None:
    spec = resolve_model(name)
    counts = count_parameters(spec)
    assert counts is not None
    assert sum(parameter_tensors(spec)) == counts.total


@pytest.mark.parametrize("name", [name for name in PRESETS if resolve_model(name).model_type in NO_LIST])
def test_a_preset_without_a_list_of_tensors_is_refused_by_the_formula_world(name: str) -> None:
    with pytest.raises(UserError, match="has no closed form"):
        parameter_tensors(resolve_model(name))


def test_an_architecture_without_a_closed_form_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^model: 'mamba' \(mamba\) has no closed form .*choices: ") as caught:
        parameter_tensors(ModelSpec(name="mamba", hf_config={"model_type": "mamba"}))
    assert "\n" not in str(caught.value)


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
