"""Walk the tensors that FSDP's first version holds and say what each is (torch/distributed/fsdp/_flat_param.py).

Each wrapped module's parameters are one flat tensor, of which a rank keeps its part; in 16 bits the part stays fp32 and
is what the optimizer updates, so the parts are master weights there.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.engine_tensors import NamedTensor

_KINDS = {
    "_mp_shard": Category.ALL_GATHER_BUFFERS,
    "_full_param_padded": Category.GATHERED_PARAMETERS,
    "_full_prec_full_param_padded": Category.GATHERED_PARAMETERS,
    "_saved_grad_shard": Category.GRADIENTS,
    "_cpu_grad": Category.GRADIENTS,
    "grad": Category.GRADIENTS,
}


def walk_flat(module: torch.nn.Module) -> Iterator[NamedTensor]:
    """What the handles of `module` and of those within it hold."""
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
            held = getattr(flat, name, None)
            if isinstance(held, torch.Tensor):
                yield NamedTensor(held, category)
