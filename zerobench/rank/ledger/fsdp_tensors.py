"""Walks the tensors that FSDP2 and FSDP1 hold and names each (torch 2.11 to 2.13).

FSDP2 (torch/distributed/fsdp/_fully_shard): the optimizer updates the sharded parameters. In fp32 they are the
parameters; in 16 bits they stay fp32 and their 16-bit copies exist only while gathered, so they are the master weights.

FSDP1 (torch/distributed/fsdp/_flat_param.py): the parameters of each wrapped module form one flat tensor, and a rank
keeps its shard. In 16 bits the shard stays fp32 and is what the optimizer updates, so it is a master weight there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zerobench.common.vocabulary import Category, Place
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_optimizer_states
from zerobench.records.records import Holder

_KINDS = {
    "_mp_shard": Category.ALL_GATHER_BUFFERS,
    "_full_param_padded": Category.GATHERED_PARAMETERS,
    "_full_prec_full_param_padded": Category.GATHERED_PARAMETERS,
    "_saved_grad_shard": Category.GRADIENTS,
    "_cpu_grad": Category.GRADIENTS,
    "grad": Category.GRADIENTS,
}


def walk_flat(module: torch.nn.Module) -> Iterator[NamedTensor]:
    """Tensors of the FSDP1 handles of `module` and of the modules inside it."""
    for inner in module.modules():
        handle = getattr(inner, "_handle", None)
        flat = getattr(handle, "flat_param", None)
        if not isinstance(flat, torch.Tensor):
            continue
        low = getattr(handle, "_fwd_bwd_param_dtype", None)
        shard = getattr(flat, "_local_shard", None)
        if isinstance(shard, torch.Tensor):
            in_16_bits = low not in (None, torch.float32) and shard.dtype is torch.float32
            yield NamedTensor(shard, Category.MASTER_WEIGHTS if in_16_bits else Category.PARAMETERS)
        for name, category in _KINDS.items():
            tensor = getattr(flat, name, None)
            if isinstance(tensor, torch.Tensor):
                yield NamedTensor(tensor, category)


def walk_fsdp(
    module: torch.nn.Module, optimizer: Any, *, are_masters: bool, place: Place | None = None
) -> Iterator[NamedTensor]:
    """All tensors of `module` under fully_shard and of its optimizer; `place`: the host if it is offloaded."""
    kept = Category.MASTER_WEIGHTS if are_masters else Category.PARAMETERS
    for group in _groups(module):
        for parameter in group.fsdp_params:
            yield from _walk_parameter(parameter, kept, place)
        result = getattr(group, "_all_gather_result", None)
        if result is not None:
            yield NamedTensor(result.all_gather_output, Category.ALL_GATHER_BUFFERS)
        partial_sum = getattr(group, "_partial_reduce_output", None)  # HSDP: so far reduced within the shard group only
        if partial_sum is not None:
            yield NamedTensor(partial_sum, Category.GRADIENTS)
    for buffer in module.buffers():
        yield NamedTensor(buffer, Category.MODEL_BUFFERS, holder=Holder.MODEL)
    yield from walk_optimizer_states(optimizer, place)


def _groups(module: torch.nn.Module) -> Iterator[Any]:
    """Groups of parameters that are gathered together (FSDPParamGroup); torch 2.11 has one a module, 2.13 a list."""
    for inner in module.modules():
        get_state = getattr(inner, "_get_fsdp_state", None)
        if get_state is not None:
            state = get_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            yield from [state._fsdp_param_group] if groups is None and state._fsdp_param_group else groups or []


def _walk_parameter(parameter: Any, kept: Category, place: Place | None) -> Iterator[NamedTensor]:
    """Tensors of an FSDPParam: padded shard, gather outputs, and gradients, sharded and whole."""
    is_frozen = not parameter.sharded_param.requires_grad  # a parameter that is never updated is no master weight
    yield NamedTensor(parameter._sharded_param_data, Category.PARAMETERS if is_frozen else kept, place)
    for gathered in getattr(parameter, "all_gather_outputs", []):
        yield NamedTensor(gathered, Category.GATHERED_PARAMETERS)
    sharded = parameter.sharded_param.grad
    if sharded is not None:
        yield NamedTensor(sharded, Category.GRADIENTS, place)
    whole = getattr(getattr(parameter, "_unsharded_param", None), "grad", None)
    for gradient in (whole, getattr(parameter, "unsharded_accumulated_grad", None)):
        if gradient is not None:
            yield NamedTensor(gradient, Category.GRADIENTS)
