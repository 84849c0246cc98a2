"""Initial weights as a function of the parameter's name and a seed, equal under every partitioning.

Strategies that start from different weights cannot be compared, and a model built under zero.Init starts from
uninitialised partitions. So the model's own initialisation is not used: each parameter is drawn by a generator seeded
with its name, on its own device. Distribution: normal with the config's initializer_range, the residual projections of
GPT-2 divided by sqrt(2 L) (GPT-2 paper, section 2.3), norms one, biases and the second matrix of an adapter zero.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch

from zerobench.rank.training.adapters import ADAPTER, BASE, ZERO_AT_FIRST
from zerobench.rank.training.quantised import QuantisedLinear

_DRAWN_ELEMENTS = 2**24
"""Elements to draw at a time: a large embedding drawn whole in fp32 would be the start-up peak, not the engine's."""

MakeGenerator = Callable[[torch.device, int], torch.Generator | None]
"""Maps device and seed to a generator; None in worlds without values."""


def seeded(device: torch.device, seed: int) -> torch.Generator:
    """Make a generator on `device` with `seed`."""
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

    Rank 0 alone draws a partitioned parameter and broadcasts it; every rank draws a whole parameter, and also a sharded
    DTensor (FSDP2, tensor parallelism), of which it keeps its part, first rounded to `dtype` like the model's
    precision, unless it is an adapter's and the trial `widens` them to fp32. In a loaded model only adapters are set.
    """
    std, layers = spread(model.config)
    for full_name, parameter in model.named_parameters():
        if is_loaded and ADAPTER not in full_name:
            continue
        name = full_name.replace(BASE, ".")  # a weight starts the same with and without an adapter
        owner = model.get_submodule(full_name.rpartition(".")[0])
        if isinstance(owner, QuantisedLinear) and parameter is owner.weight:
            whole = torch.empty(owner.out_features, owner.in_features, dtype=owner.dtype, device=owner.scale.device)
            draw(whole, name, seed, std, layers, make_generator)
            codes = owner.quantise(whole)
            keep_part(parameter, codes) if hasattr(parameter, "device_mesh") else parameter.data.copy_(codes)
        elif hasattr(parameter, "ds_tensor"):
            import deepspeed

            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                if torch.distributed.get_rank() == 0:
                    draw(parameter.data, name, seed, std, layers, make_generator)
        elif hasattr(parameter, "device_mesh"):
            own = parameter.dtype if widens and ADAPTER in full_name else dtype
            whole = torch.empty(parameter.shape, dtype=own, device=_computes_on(parameter))
            draw(whole, name, seed, std, layers, make_generator)
            keep_part(parameter, whole)
        else:
            draw(parameter.data, name, seed, std, layers, make_generator)


def spread(config: Any) -> tuple[float, int]:
    """Standard deviation of the weights, and number of layers, of a transformers config."""
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
    """Copy this rank's part of `whole` into a DTensor: its chunk as of torch.chunk, or all of it.

    In a mesh of two dimensions the last one shards, and the first replicates (HSDP).
    """
    mesh, local, [*_, placement] = sharded.device_mesh, sharded.to_local(), sharded.placements
    dim, last = getattr(placement, "dim", 0), len(sharded.placements) - 1
    each = -(-whole.shape[dim] // mesh.size(last))
    start = min(mesh.get_local_rank(last) * each, whole.shape[dim]) if placement.is_shard() else 0
    local.copy_(whole.narrow(dim, start, local.shape[dim]))


def _computes_on(sharded: Any) -> torch.device:
    """Device of the ranks, where values are drawn, also for offloaded parameters."""
    kind = sharded.device_mesh.device_type
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
