"""Products of a backward pass under frozen weights, held against those that torch counts on real models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from zerobench.config.derived.flops import FROZEN_FORMULA, MODEL_FORMULA, model_flops_per_token
from zerobench.config.models.parameters import ParameterCounts
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.backward import backward_pass, uses
from zerobench.rank.ledger.engine_config import count_parameters_built, weights_built

SEQUENCE = 32
ROTARY = 1e-5  # some versions of transformers make the rotary angles by a product, 8 FLOPs a token here
SMALL = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "vocab_size": 300}
LLAMA, TIED = {"family": "llama"}, {"family": "llama", "tie_word_embeddings": True}
GROUPED, GPT2 = {"family": "llama", "num_kv_heads": 2}, {"family": "gpt2"}


class Adapted(torch.nn.Module):
    """A frozen projection and a low-rank one beside it, named as PEFT names them."""

    def __init__(self, base: torch.nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(requires_grad=False)
        self.lora_A = torch.nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = torch.nn.Linear(rank, base.out_features, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = self.base_layer(hidden) + self.lora_B(self.lora_A(hidden))
        return given


def freeze(model: Any, *beginnings: str) -> None:
    for name, parameter in model.named_parameters():
        if name.startswith(beginnings):
            parameter.requires_grad_(requires_grad=False)


def adapt(model: Any, *projections: str) -> None:
    """LoRA in every layer."""
    freeze(model, "")
    for layer in model.model.layers:
        for projection in projections:
            parent = layer.self_attn if hasattr(layer.self_attn, projection) else layer.mlp
            setattr(parent, projection, Adapted(getattr(parent, projection)))


def train_only(model: Any, beginning: str) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(beginning))


EMBEDDING = ("model.embed_tokens", "transformer.wte", "transformer.wpe")
CASES: dict[str, tuple[dict[str, Any], Callable[[Any], None]]] = {
    "frozen embedding": (LLAMA, lambda model: freeze(model, *EMBEDDING)),
    "frozen embedding of grouped queries": (GROUPED, lambda model: freeze(model, *EMBEDDING)),
    "frozen embedding of gpt2": (GPT2 | {"tie_word_embeddings": False}, lambda model: freeze(model, *EMBEDDING)),
    "frozen lower blocks": (LLAMA, lambda model: freeze(model, *EMBEDDING, "model.layers.0", "model.layers.1.")),
    "frozen lower blocks of gpt2": (GPT2, lambda model: freeze(model, *EMBEDDING, "transformer.h.0.")),
    "frozen upper blocks": (LLAMA, lambda model: freeze(model, "model.layers.3.", "lm_head")),
    "frozen keys": (
        LLAMA,
        lambda model: freeze(model, *EMBEDDING, *[f"model.layers.{i}.self_attn.k" for i in range(4)]),
    ),
    "LoRA of queries and values": (LLAMA, lambda model: adapt(model, "q_proj", "v_proj")),
    "LoRA of gates and outputs": (LLAMA, lambda model: adapt(model, "gate_proj", "down_proj", "o_proj")),
    "the head alone": (LLAMA, lambda model: train_only(model, "lm_head")),
    "the embedding alone": (LLAMA, lambda model: train_only(model, "model.embed_tokens")),
    "the tied embedding alone": (TIED, lambda model: train_only(model, "model.embed_tokens")),
    "one norm": (LLAMA, lambda model: train_only(model, "model.layers.2.input_layernorm")),
}


@pytest.mark.parametrize("case", CASES)
def test_products_are_those_that_torch_counts(case: str) -> None:
    shape, change = CASES[case]
    spec = resolve_model(SMALL | shape)
    # Eager attention shows its products to the counter one by one.
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**spec.hf_config), attn_implementation="eager")
    change(model)
    tokens = torch.zeros(2, SEQUENCE, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens).logits.sum().backward()
    weights = weights_built(model)
    counts = ParameterCounts.from_components(count_parameters_built(model).by_component)
    flops, formula = model_flops_per_token(spec, SEQUENCE, counts, backward_pass(weights))
    assert flops is not None
    assert formula == FROZEN_FORMULA
    vectors = {name for name, parameter in model.named_parameters() if parameter.dim() == 1}
    in_no_product = sum(
        2 * use.weight.size * (1 + use.weight.is_trained + use.passes_on)
        for use in uses(weights)
        if use.weight.name in vectors
    )
    assert flops - in_no_product == pytest.approx(counter.get_total_flops() / tokens.numel(), rel=ROTARY)


def test_a_model_that_is_all_trained_costs_six_for_each_weight() -> None:
    spec = resolve_model(SMALL | LLAMA)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**spec.hf_config))
    assert backward_pass(weights_built(model)) is None
    assert model_flops_per_token(spec, SEQUENCE, backward=None)[1] == MODEL_FORMULA
