"""Initial weights as a function of the parameter's name and a seed, equal under every partitioning.

Two strategies that start from different weights cannot be compared, and a model built under zero.Init starts from
whatever its empty partitions held. So nothing is left to the model's own initialisation: each parameter is drawn by a
generator seeded with its name, on the device that it lives on. Distribution: normal with the config's
initializer_range, the residual projections of GPT-2 divided by sqrt(2 L) (GPT-2 paper, section 2.3), norms one, biases
and the second matrix of an adapter zero.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch

from zerobench.rank.training.adapters import ADAPTER, BASE, ZERO_AT_FIRST
from zerobench.rank.training.quantised import QuantisedLinear

_DRAWN_ELEMENTS = 2**24
"""Drawn at a time: a large embedding drawn whole in fp32 would be the start-up peak, and none of the engine's."""

MakeGenerator = Callable[[torch.device, int], torch.Generator | None]
"""Device and seed to the generator that draws there; None where values do not exist."""


def seeded(device: torch.device, seed: int) -> torch.Generator:
    """A generator of its own for every parameter."""
    return torch.Generator(device).manual_seed(seed)


def fill_weights(
    model: Any,
    seed: int,
    make_generator: MakeGenerator = seeded,
    dtype: torch.dtype | None = None,
    *,
    is_loaded: bool = False,
    widens: bool = False,
) -> None:
    """Set every parameter of a transformers model; parameters partitioned by ZeRO-3 are gathered one at a time.

    Only rank 0 draws a partitioned parameter and broadcasts it; a whole one is drawn on every rank alike, and so is one
    that is cut up as DTensors are (FSDP2, tensor parallelism), of which each rank keeps its part, rounded to `dtype`
    first as the model's precision has it, unless it is an adapter's and the trial `widens` them to fp32. Of a model
    that was loaded only adapters are left to be set.
    """
    std, layers = spread(model.config)
    for full_name, parameter in model.named_parameters():
        if is_loaded and ADAPTER not in full_name:
            continue
        name = full_name.replace(BASE, ".")  # a weight starts alike with and without an adapter beside it
        owner = model.get_submodule(full_name.rpartition(".")[0])
        if isinstance(owner, QuantisedLinear) and parameter is owner.weight:
            whole = torch.empty(owner.out_features, owner.in_features, dtype=owner.dtype, device=owner.scale.device)
            draw(whole, name, seed, std, layers, make_generator)
            codes = owner.quantise(whole)
            keep_part(parameter, codes) if hasattr(parameter, "device_mesh") else parameter.data.copy_(codes)
        elif hasattr(parameter, "ds_tensor"):
            _fill_partitioned(parameter, name, seed, std, layers, make_generator)
        elif hasattr(parameter, "device_mesh"):
            own = parameter.dtype if widens and ADAPTER in full_name else dtype
            whole = torch.empty(parameter.shape, dtype=own, device=_computes_on(parameter))
            draw(whole, name, seed, std, layers, make_generator)
            keep_part(parameter, whole)
        else:
            draw(parameter.data, name, seed, std, layers, make_generator)


def spread(config: Any) -> tuple[float, int]:
    """Standard deviation of the weights of a config of transformers, and its layers."""
    return float(getattr(config, "initializer_range", 0.02)), int(getattr(config, "num_hidden_layers", 1))


@torch.no_grad()
def draw(
    target: torch.Tensor, name: str, seed: int, std: float, layers: int, make_generator: MakeGenerator = seeded
) -> None:
    """Fill `target` (any shape) with the initial values of the parameter called `name`, drawn in fp32."""
    if name.endswith((".bias", ZERO_AT_FIRST)):
        target.zero_()
    elif target.dim() == 1 and name.endswith(".weight"):  # the gain of a LayerNorm or RMSNorm
        target.fill_(1.0)
    else:
        scale = std / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else std
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = make_generator(target.device, int.from_bytes(digest[:7], "big"))
        for part in target.view(-1).split(_DRAWN_ELEMENTS):
            values = torch.empty(part.shape, dtype=torch.float32, device=part.device)
            part.copy_(values.normal_(0.0, scale, generator=generator))


@torch.no_grad()
def keep_part(sharded: Any, whole: torch.Tensor) -> None:
    """Copy into a DTensor this rank's part of `whole`: as torch.chunk cuts its dimension, or all of it.

    Of two dimensions of a mesh the last one divides, and the first repeats (HSDP).
    """
    mesh, local, [*_, placement] = sharded.device_mesh, sharded.to_local(), sharded.placements
    dim, last = getattr(placement, "dim", 0), len(sharded.placements) - 1
    each = -(-whole.shape[dim] // mesh.size(last))
    start = min(mesh.get_local_rank(last) * each, whole.shape[dim]) if placement.is_shard() else 0
    local.copy_(whole.narrow(dim, start, local.shape[dim]))


def _computes_on(sharded: Any) -> torch.device:
    """The device of the ranks, where values are drawn, also for what is offloaded from it."""
    kind = sharded.device_mesh.device_type
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def _fill_partitioned(
    parameter: Any, name: str, seed: int, std: float, layers: int, make_generator: MakeGenerator
) -> None:
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        if torch.distributed.get_rank() == 0:
            draw(parameter.data, name, seed, std, layers, make_generator)
