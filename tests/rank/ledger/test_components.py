"""Parameters get components from the classes and roles of their modules, whatever their names are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import transformers

from tests.rank.ledger.counted_by_hand import ARCHITECTURES, Architecture
from zerobench.rank.ledger.components import components_of
from zerobench.rank.ledger.engine_config import count_parameters_built

LARGEST_OTHER = 0.08
"""Share of a model that may be none of the components, but for state-space models."""


def built(architecture: Architecture) -> Any:
    """The model of its config's own sizes, without memory."""
    config = transformers.AutoConfig.for_model(architecture.model_type, **architecture.config)
    with torch.device("meta"):
        return getattr(transformers, architecture.auto_class).from_config(config)


def counted(model: torch.nn.Module) -> Counter[str]:
    return Counter(count_parameters_built(model).by_component)


def test_the_table_holds_forty_architectures() -> None:
    assert len({architecture.model_type for architecture in ARCHITECTURES}) >= 40


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.model_type)
def test_each_component_has_the_parameters_that_were_added_up_by_hand(architecture: Architecture) -> None:
    model = built(architecture)
    expected = Counter(architecture.count(model.config))
    assert +counted(model) == +expected
    is_attentive = architecture.model_type != "mamba"
    assert not is_attentive or expected["other"] <= LARGEST_OTHER * expected.total()


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = torch.nn.Linear(8, 24)


class Block(torch.nn.Module):
    """A block whose attention has the name of an MLP, and the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.feed_forward = Attention()
        self.attn = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
        self.mlp = torch.nn.LayerNorm(8)


class Decoder(torch.nn.Module):
    """A program's own model: nothing in it says which table is the tokens', and which layer the head."""

    def __init__(self, *, is_tied: bool = False) -> None:
        super().__init__()
        self.wte = torch.nn.Embedding(16, 8)
        self.norm = torch.nn.Embedding(100, 8)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.wpe = torch.nn.Linear(8, 100, bias=False)
        if is_tied:
            self.wpe.weight = self.norm.weight


OF_TWO_BLOCKS = {
    "positional_embeddings": 16 * 8,
    "token_embeddings": 100 * 8,
    "attention": 2 * (8 * 24 + 24),
    "mlp": 2 * (8 * 32 + 32 + 32 * 8 + 8),
    "norms": 2 * 2 * 8,
}


def test_names_say_nothing_and_the_table_as_long_as_the_last_layer_is_the_tokens() -> None:
    assert counted(Decoder()) == OF_TWO_BLOCKS | {"head": 8 * 100}


def test_a_tied_head_is_counted_once_with_the_tokens() -> None:
    assert counted(Decoder(is_tied=True)) == OF_TWO_BLOCKS


def test_a_tied_head_that_is_registered_first_is_counted_with_the_tokens_too() -> None:
    model = Decoder(is_tied=True)
    model._modules = dict(reversed(model._modules.items()))
    assert next(iter(components_of(model))) == "wpe.weight"
    assert counted(model) == OF_TWO_BLOCKS


class OurMoE(torch.nn.Module):
    """A model, whatever its class is called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Decoder()
        self.gate = Attention()
        self.rest = torch.nn.Linear(8, 8)


def test_a_module_that_holds_the_token_table_is_a_model_and_no_block() -> None:
    rest = {"attention": 8 * 24 + 24, "other": 8 * 8 + 8}
    assert counted(torch.nn.Sequential(OurMoE())) == counted(Decoder()) + Counter(rest)


def test_torchs_own_blocks_are_told_apart() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=32)
    assert counted(torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)) == {
        "attention": 3 * (8 * 24 + 24 + 8 * 8 + 8),
        "mlp": 3 * (8 * 32 + 32 + 32 * 8 + 8),
        "norms": 3 * 2 * 16,
    }


def test_an_adapter_belongs_to_what_it_is_beside() -> None:
    model = built(next(a for a in ARCHITECTURES if a.model_type == "t5"))
    projection = model.encoder.block[0].layer[0].SelfAttention.q
    projection.lora_A = torch.nn.Linear(512, 4, bias=False, device="meta")
    before = counted(built(next(a for a in ARCHITECTURES if a.model_type == "t5")))
    assert counted(model) - before == {"attention": 4 * 512}


def test_a_partitioned_table_of_positions_is_known_by_its_full_shape() -> None:
    """Stage 3 leaves an empty tensor in a parameter's place."""
    model = built(next(a for a in ARCHITECTURES if a.model_type == "vit"))
    whole = components_of(model)
    for parameter in model.parameters():
        parameter.ds_shape, parameter.data = parameter.shape, torch.empty(0, device="meta")
    assert components_of(model) == whole


def test_of_several_layers_as_wide_as_the_table_is_long_the_last_is_the_head() -> None:
    model = torch.nn.Sequential(
        torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100), torch.nn.Linear(100, 8, bias=False)
    )
    model.append(torch.nn.Linear(8, 100, bias=False))
    assert counted(model) == {"token_embeddings": 800, "other": 8 * 100 + 100 + 100 * 8, "head": 800}
