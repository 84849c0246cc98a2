"""The closed forms against transformers' own models, built without memory on the meta device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spec.transformers_models import CONFIGS, built, configuration_name
from zerobench.spec.components import component_of
from zerobench.spec.model import ModelSpec
from zerobench.spec.parameters import ParameterCounts, count_parameters
from zerobench.spec.presets import PRESETS, resolve_model

if TYPE_CHECKING:
    import torch


def counted(model: torch.nn.Module) -> ParameterCounts:
    """Parameters of a model as built, by the names alone; a shared one comes once."""
    by_component: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        by_component[component_of(name)] += parameter.numel()
    return ParameterCounts.from_components(by_component)


def closed_form(spec: ModelSpec) -> ParameterCounts:
    counts = count_parameters(spec)
    assert counts is not None
    return counts


@pytest.mark.parametrize("config", CONFIGS, ids=configuration_name)
def test_the_closed_form_equals_the_model_that_transformers_builds(config: dict[str, Any]) -> None:
    spec = resolve_model(config)
    assert closed_form(spec) == counted(built(spec))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_equals_the_model_that_transformers_builds(name: str) -> None:
    spec = resolve_model(name)
    assert closed_form(spec) == counted(built(spec))


@settings(deadline=None, max_examples=30)
@given(
    family=st.sampled_from(["gpt2", "llama"]),
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    half_head=st.integers(1, 5),
    vocab=st.integers(1, 400),
    inner=st.none() | st.integers(1, 50),
    tied=st.none() | st.booleans(),
)
def test_any_shape_written_out_is_counted_as_it_is_built(
    family: str,
    layers: int,
    kv_heads: int,
    groups: int,
    half_head: int,
    vocab: int,
    inner: int | None,
    tied: bool | None,
) -> None:
    heads = kv_heads * groups
    shape = {
        "family": family,
        "num_layers": layers,
        "hidden_size": 2 * half_head * heads,
        "num_heads": heads,
        "num_kv_heads": kv_heads if family == "llama" else None,
        "vocab_size": vocab,
        "intermediate_size": inner,
        "tie_word_embeddings": tied,
    }
    spec = resolve_model(shape)
    assert closed_form(spec) == counted(built(spec))


def test_components_sum_to_the_total_and_other_is_shown_only_where_there_is_any() -> None:
    counts = ParameterCounts(token_embeddings=1, attention=2, mlp=4, norms=8, head=16)
    assert counts.total == 31
    assert sum(counts.by_component().values()) == counts.total
    assert "other" not in counts.by_component()
    assert ParameterCounts(other=3).by_component()["other"] == 3


def test_counts_read_back_from_their_components_and_unknown_components_are_other() -> None:
    counts = closed_form(resolve_model("gpt2-10m"))
    assert ParameterCounts.from_components(counts.by_component()) == counts
    assert ParameterCounts.from_components({"mlp": 2, "vision": 5, "other": 1}) == ParameterCounts(mlp=2, other=6)


def test_a_tied_head_is_counted_once_under_token_embeddings() -> None:
    counts = closed_form(resolve_model("gpt2-125m"))
    assert (counts.token_embeddings, counts.head) == (50257 * 768, 0)


@pytest.mark.parametrize("config", [{"model_type": "qwen2_moe"}, {"model_type": "gpt2", "add_cross_attention": True}])
def test_an_architecture_without_a_closed_form_has_no_count(config: dict[str, Any]) -> None:
    assert count_parameters(resolve_model(config)) is None


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("model.layers.0.post_attention_layernorm.weight", "norms"),
        ("model.layers.0.self_attn.q_norm.weight", "norms"),
        ("transformer.word_embeddings_layernorm.bias", "norms"),
        ("transformer.blocks.3.norm_1.weight", "norms"),
        ("transformer.norm_f.weight", "norms"),
        ("layers.0.attention_norm.weight", "norms"),
        ("transformer.h.11.attn.c_attn.weight", "attention"),
        ("transformer.h.0.self_attention.query_key_value.weight", "attention"),
        ("transformer.blocks.0.attn.Wqkv.weight", "attention"),
        ("model.layers.1.self_attn.o_proj.bias", "attention"),
        ("model.decoder.layers.0.fc1.weight", "mlp"),
        ("model.layers.0.mlp.experts.3.down_proj.weight", "mlp"),
        ("model.layers.0.block_sparse_moe.gate.weight", "mlp"),
        ("layers.0.feed_forward.w1.weight", "mlp"),
        ("module.transformer.wte.weight", "token_embeddings"),
        ("gpt_neox.embed_in.weight", "token_embeddings"),
        ("transformer.word_embeddings.weight", "token_embeddings"),
        ("transformer.wpe.weight", "positional_embeddings"),
        ("model.decoder.embed_positions.weight", "positional_embeddings"),
        ("lm_head.weight", "head"),
        ("embed_out.weight", "head"),
        ("output.weight", "head"),
        ("encoder.layer.0.output.weight", "other"),
        ("model.layers.0.mixer.A_log", "other"),
        ("visual.patch.proj.weight", "other"),
        ("", "other"),
    ],
)
def test_a_parameter_is_placed_by_the_innermost_part_of_its_name_that_says_anything(name: str, component: str) -> None:
    assert component_of(name) == component


@given(st.text())
def test_any_name_has_a_component(name: str) -> None:
    assert ParameterCounts.from_components({component_of(name): 1}).total == 1
