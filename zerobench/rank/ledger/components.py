"""Assigns each parameter of a built model to a component, by the classes and roles of its modules, never by names.

The meaning of a name differs between models: `wo` is the second matrix of T5's MLP, and attention's output projection
elsewhere. A class states what it computes (`T5DenseActDense`, `nn.LayerNorm`), a transformers model exposes its input
embedding and its head, and matrices next to a block's attention are the block's MLP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from zerobench.config.trial.model import Component

# Classes are matched at their end: a JambaAttentionDecoderLayer holds more than attention.
_ATTENTION = re.compile(r"(Attention|Attn)(Output|Map|\d*)$")
_MLP = re.compile(
    r"(MLP|Mlp|FeedForward|FFN?|GLU|MoE|MOE|Moe|SparseMoeBlock|Experts?|Router|Gating|Intermediate|Output)"
    r"(Layer|Network)?\d*$"
)
_POOLER = re.compile(r"Pool(er|ing(Head|Layer)?)$")
_POSITIONS = re.compile(r"Position(?!wise)|RelPos")
_NORM = re.compile(r"Norm")
_EMBEDDINGS = re.compile(r"Embed(dings?)?$")
_MIXER = re.compile(r"Mixer|Mamba|SSM|DeltaNet|Recurrent|Conv|Adapter|Embed|Projector")
"""Modules next to attention in some blocks that are no MLP."""


@dataclass(frozen=True)
class _Place:
    """Kinds of modules that enclose a module, itself included."""

    in_head: bool = False
    in_positions: bool = False
    in_attention: bool = False
    in_mlp: bool = False
    beside_attention: bool = False
    """In a block that has an attention module, but outside that module."""
    after_backbone: bool = False
    """In a transformers model that names its backbone, but outside the backbone."""


class _Roles:
    """Token tables and heads of a model, as its modules expose them, else by sizes."""

    def __init__(self, model: torch.nn.Module) -> None:
        modules = list(model.modules())
        tables = [module for module in modules if isinstance(module, torch.nn.Embedding)]
        inputs = list(_answers(modules, "get_input_embeddings"))  # a convolution, where the input is an image
        self.heads = _unique(_answers(modules, "get_output_embeddings"))
        if inputs:
            self.tables = _unique(part for part in inputs if isinstance(part, torch.nn.Embedding))
        elif vocabularies := {getattr(getattr(module, "config", None), "vocab_size", None) for module in modules} - {
            None
        }:
            self.tables = [table for table in tables if table.num_embeddings in vocabularies]
        else:
            self.tables, self.heads = _read_off_sizes(modules, tables)
        self.rows = {table.num_embeddings for table in self.tables}
        self.token_weights = {id(table.weight) for table in self.tables}
        self.models = {id(module) for module in modules if any(part in self.tables for part in module.modules())}


def _read_off_sizes(
    modules: list[torch.nn.Module], tables: list[torch.nn.Embedding]
) -> tuple[list[torch.nn.Embedding], list[Any]]:
    """Find the token table and the head of a model that exposes neither: the head is the last layer with one output
    per row of a table.
    """
    sizes = {table.num_embeddings for table in tables}
    heads = [module for module in modules if getattr(module, "out_features", None) in sizes][-1:]
    rows = {head.out_features for head in heads}
    return [table for table in tables if table.num_embeddings in rows][:1] or tables[:1], heads


def components_of(model: torch.nn.Module) -> dict[str, Component]:
    """Component of each parameter, by name; tied ones once, as `named_parameters` lists them."""
    roles = _Roles(model)
    modules = dict(model.named_modules())
    places = _places(modules, roles)
    components = {}
    for name, parameter in model.named_parameters():
        path = name.rpartition(".")[0]
        components[name] = _component(parameter, modules[path], places[path], roles)
    return components


def _component(parameter: torch.nn.Parameter, owner: torch.nn.Module, place: _Place, roles: _Roles) -> Component:
    if id(parameter) in roles.token_weights:
        return Component.TOKEN_EMBEDDINGS
    if _NORM.search(type(owner).__name__) and not any(owner.children()):
        return Component.NORMS
    if place.in_head:
        return Component.HEAD
    if isinstance(owner, torch.nn.Embedding) and owner.num_embeddings in roles.rows:
        return Component.TOKEN_EMBEDDINGS
    if place.in_positions or _is_table_of_positions(parameter, owner):
        return Component.POSITIONAL_EMBEDDINGS
    if place.in_attention:
        return Component.ATTENTION
    if place.in_mlp or place.beside_attention:
        return Component.MLP
    return Component.HEAD if place.after_backbone else Component.OTHER


def _is_table_of_positions(parameter: torch.nn.Parameter, owner: torch.nn.Module) -> bool:
    """True for a table other than the token table: a layer, or a bare parameter with more than one row.

    A bare parameter of one row is a single learned token, such as ViT's class token.
    """
    if isinstance(owner, torch.nn.Embedding):
        return True
    shape = getattr(parameter, "ds_shape", parameter.shape)  # stage 3 leaves an empty tensor in its place
    return bool(_EMBEDDINGS.search(type(owner).__name__)) and len(shape) > 1 and shape.numel() > shape[-1]


def _places(modules: dict[str, torch.nn.Module], roles: _Roles) -> dict[str, _Place]:
    """Place of each module, by path; `modules` lists parents before their children."""
    places: dict[str, _Place] = {}
    backbones: dict[str, torch.nn.Module] = {}
    for path, module in modules.items():
        outer = path.rpartition(".")[0]
        around = places[outer] if path else _Place()
        beside = around.beside_attention or _has_attention(modules[outer], roles)
        after = around.after_backbone
        if outer in backbones and path:
            after = module is not backbones[outer]
        places[path] = _entered(replace(around, beside_attention=beside, after_backbone=after), module, roles)
        prefix = getattr(type(module), "base_model_prefix", None)  # transformers' name of the part below a head
        if isinstance(prefix, str) and (backbone := module._modules.get(prefix)) is not None:
            backbones[path] = backbone
    return places


def _entered(around: _Place, module: torch.nn.Module, roles: _Roles) -> _Place:
    name = type(module).__name__
    is_head = any(module is head for head in roles.heads) or bool(_POOLER.search(name))
    if id(module) in roles.models:  # whatever its name: it encloses everything else
        return replace(around, in_head=around.in_head or is_head, beside_attention=False)
    return _Place(
        in_head=around.in_head or is_head,
        in_positions=around.in_positions or bool(_POSITIONS.search(name)),
        in_attention=around.in_attention or bool(_ATTENTION.search(name)),
        in_mlp=around.in_mlp or bool(_MLP.search(name)),
        beside_attention=around.beside_attention and not _MIXER.search(name),
        after_backbone=around.after_backbone,
    )


def _has_attention(module: torch.nn.Module, roles: _Roles) -> bool:
    return id(module) not in roles.models and any(_ATTENTION.search(type(c).__name__) for c in module.children())


def _answers(modules: list[torch.nn.Module], method: str) -> Iterator[Any]:
    """Results of `method` from the modules that have it, without None."""
    for module in modules:
        if callable(ask := getattr(type(module), method, None)):
            with suppress(NotImplementedError, AttributeError):  # transformers' way to say that there is none
                if (answer := ask(module)) is not None:
                    yield answer


def _unique(found: Iterable[Any]) -> list[Any]:
    return list({id(module): module for module in found}.values())
