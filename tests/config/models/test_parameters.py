"""The closed forms against transformers' own models, built without memory on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.models.transformers_models import CONFIGS, built, configuration_name
from zerobench.config.models.parameters import ParameterCounts, count_parameters
from zerobench.config.models.presets import PRESETS, resolve_model
from zerobench.config.trial.model import ModelSpec

if TYPE_CHECKING:
    import torch


def counted(model: torch.nn.Module) -> ParameterCounts:
    """Parameters of a model as built; a shared one is counted once."""
    from zerobench.rank.ledger.engine_config import count_parameters_built

    return ParameterCounts.from_components(count_parameters_built(model).by_component)


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
    assert sum(counts.component_counts().values()) == counts.total
    assert "other" not in counts.component_counts()
    assert ParameterCounts(other=3).component_counts()["other"] == 3


def test_counts_read_back_from_their_components_and_unknown_components_are_other() -> None:
    counts = closed_form(resolve_model("gpt2-10m"))
    assert ParameterCounts.from_components(counts.component_counts()) == counts
    assert ParameterCounts.from_components({"mlp": 2, "vision": 5, "other": 1}) == ParameterCounts(mlp=2, other=6)


def test_a_tied_head_is_counted_once_under_token_embeddings() -> None:
    counts = closed_form(resolve_model("gpt2-125m"))
    assert (counts.token_embeddings, counts.head) == (50257 * 768, 0)


@pytest.mark.parametrize("config", [{"model_type": "qwen2_moe"}, {"model_type": "gpt2", "add_cross_attention": True}])
def test_an_architecture_without_a_closed_form_has_no_count(config: dict[str, Any]) -> None:
    assert count_parameters(resolve_model(config)) is None
