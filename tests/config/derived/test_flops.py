"""Closed-form FLOPs against torch's own counter and against the formula of Megatron-LM."""

from typing import Any

import pytest

from zerobench.config.derived.flops import MODEL_FORMULA, model_flops_per_token
from zerobench.config.models.parameters import ParameterCounts
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.backward import BackwardPass
from zerobench.config.trial.model import ModelSpec

SEQUENCE = 32
ROTARY = 1e-5  # some versions of transformers make the rotary angles by a product, 8 FLOPs a token here
SMALL = {"num_layers": 3, "hidden_size": 64, "num_heads": 4, "vocab_size": 300}
SHAPES: list[dict[str, Any]] = [
    SMALL | {"family": "llama"},
    SMALL | {"family": "llama", "num_kv_heads": 2, "tie_word_embeddings": True},
    SMALL | {"family": "gpt2"},
    SMALL | {"family": "gpt2", "tie_word_embeddings": False},
]


def counted_by_torch(spec: ModelSpec) -> float:
    """FLOPs of every matrix product of one forward and backward, per token."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    # Eager attention shows its products to the counter one by one.
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**spec.hf_config), attn_implementation="eager")
    tokens = torch.zeros(2, SEQUENCE, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens).logits.sum().backward()
    return float(counter.get_total_flops() / tokens.numel())


def vectors(spec: ModelSpec) -> int:
    """Norms and biases: parameters that are in N and in no matrix product."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**spec.hf_config))
    return sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_model_flops_are_the_matrix_products_that_torch_counts(shape: dict[str, Any]) -> None:
    spec = resolve_model(shape)
    flops, formula = model_flops_per_token(spec, SEQUENCE)
    assert flops is not None
    assert flops - 6 * vectors(spec) == pytest.approx(counted_by_torch(spec), rel=ROTARY)
    assert formula == MODEL_FORMULA


def test_gpt3_costs_what_megatron_says() -> None:
    layers, hidden, vocab, sequence = 96, 12288, 50257, 2048
    # Narayanan et al. 2021 (arXiv:2104.04473), equation 3, per token, without its second forward pass
    megatron = 72 * layers * hidden**2 * (1 + sequence / (6 * hidden) + vocab / (12 * layers * hidden))
    flops, _ = model_flops_per_token(resolve_model("gpt3-175b"), sequence)
    assert flops == pytest.approx(megatron, rel=2e-4)


def test_a_sliding_window_bounds_the_attention_of_mistral() -> None:
    spec = resolve_model({"model_type": "mistral"})
    at_window, beyond = model_flops_per_token(spec, 4096), model_flops_per_token(spec, 32768)
    assert at_window != (None, None)
    assert at_window == beyond


def test_a_model_whose_layers_differ_in_window_has_no_closed_form_beyond_it() -> None:
    spec = resolve_model({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64})
    assert model_flops_per_token(spec, 64) != (None, None)
    assert model_flops_per_token(spec, 65) == (None, None)


def test_counts_of_the_model_as_built_stand_in_where_no_closed_form_counts() -> None:
    spec = resolve_model({"model_type": "falcon", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64})
    counts = ParameterCounts(token_embeddings=640, attention=100, mlp=200, norms=10)
    assert model_flops_per_token(spec, 16) == (None, None)
    assert model_flops_per_token(spec, 16, counts) == (6 * 950 + 12 * 2 * 64 * 16, MODEL_FORMULA)
    some = BackwardPass(trained=10, passed=500, attention_share=0.25)
    assert model_flops_per_token(spec, 16, counts, some)[0] == 2 * (950 + 10 + 500) + (4 + 8 / 4) * 2 * 64 * 16


@pytest.mark.parametrize("config", [{"model_type": "mixtral"}, {"model_type": "mamba"}, {"model_type": "falcon"}])
def test_flops_are_not_available_where_the_formula_or_a_size_is_not(config: dict[str, Any]) -> None:
    spec = resolve_model(config)
    counts = ParameterCounts(mlp=1)
    assert model_flops_per_token(spec, 16, counts) == (None, None)
