"""Walk the tensors that FSDP2 holds and say what each is (torch/distributed/fsdp/_fully_shard, torch 2.11 to 2.13).

Its sharded parameters are what the optimizer updates. In fp32 they are the parameters; in 16 bits they stay fp32 while
their 16-bit copies exist only gathered, so they are the master weights, and nothing else of the parameters is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zerobench.common.vocabulary import Category, Place
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_optimizer_states
from zerobench.records.records import Holder


def walk_fsdp(
    module: torch.nn.Module, optimizer: Any, *, are_masters: bool, place: Place | None = None
) -> Iterator[NamedTensor]:
    """Everything that `module` under fully_shard and its optimizer hold; `place`: the host, where it is offloaded."""
    kept = Category.MASTER_WEIGHTS if are_masters else Category.PARAMETERS
    for group in _groups(module):
        for parameter in group.fsdp_params:
            yield from _walk_parameter(parameter, kept, place)
        result = getattr(group, "_all_gather_result", None)
        if result is not None:
            yield NamedTensor(result.all_gather_output, Category.ALL_GATHER_BUFFERS)
        partial_sum = getattr(group, "_partial_reduce_output", None)  # HSDP: reduced within the group alone so far
        if partial_sum is not None:
            yield NamedTensor(partial_sum, Category.GRADIENTS)
    for buffer in module.buffers():
        yield NamedTensor(buffer, Category.MODEL_BUFFERS, holder=Holder.MODEL)
    yield from walk_optimizer_states(optimizer, place)


def _groups(module: torch.nn.Module) -> Iterator[Any]:
    """The groups of parameters that are gathered together (FSDPParamGroup); 2.11 has one a module, 2.13 a list."""
    for inner in module.modules():
        get_state = getattr(inner, "_get_fsdp_state", None)
        if get_state is not None:
            state = get_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            yield from [state._fsdp_param_group] if groups is None and state._fsdp_param_group else groups or []


def _walk_parameter(parameter: Any, kept: Category, place: Place | None) -> Iterator[NamedTensor]:
    """FSDPParam: its padded part, what it is gathered into, and its gradients, sharded and whole."""
    is_frozen = not parameter.sharded_param.requires_grad  # what is not updated is no master weight
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
