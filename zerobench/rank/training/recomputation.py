"""Activation checkpointing of a transformers model: backward runs the forward pass of blocks again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import CheckpointPolicy, _CachedTorchDispatchMode, create_selective_checkpoint_contexts

from zerobench.config.trial.recomputation import OPERATIONS, Checkpointing, is_recomputed

_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
_ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}").default
    for kernel in (
        "flash_attention",
        "efficient_attention",
        "cudnn_attention",
        "flash_attention_for_cpu",
        "fused_attention_overrideable",
    )
)
_stands_in = [False]


def enable_checkpointing(model: Any, checkpointing: Checkpointing) -> None:
    """Recompute blocks in the backward pass; transformers renamed the method within the supported range."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False} | ({"context_fn": _contexts} if checkpointing == OPERATIONS else {}))
    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for index, block in enumerate(blocks):
        block.gradient_checkpointing = is_recomputed(checkpointing, index)


@contextmanager
def attention_results() -> Iterator[None]:
    """Treat memory allocated inside as results of attention, from a kernel that is no operation of torch."""
    _stands_in[0] = True
    try:
        yield
    finally:
        _stands_in[0] = False


def is_kept() -> bool:
    """True in a block's second forward pass, which takes results of the first one instead of computing them."""
    return any(isinstance(mode, _CachedTorchDispatchMode) for mode in _get_current_dispatch_mode_stack())


def _contexts() -> Any:
    """Contexts of a block's first and second forward pass."""
    policy = _policy()
    first, _ = create_selective_checkpoint_contexts(policy)
    return first, _SecondPass(policy, first.storage, allow_cache_entry_mutation=False)


class _SecondPass(_CachedTorchDispatchMode):
    """Runs operations that are not kept without torch 2.13's check that the first pass ran them too.

    Operations of an engine may differ: ZeRO's stage 3 may gather parameters that the first pass found gathered.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS or _is_attention(func):
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call] # torch's
        return func(*args, **(kwargs or {}))


def _policy() -> Callable[..., CheckpointPolicy]:
    """Policy for one block: keep the results of attention and of the first, third, fifth matrix product."""
    products: Counter[bool] = Counter()

    def keep(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        products[context.is_recompute] += operation in _PRODUCTS
        is_odd = operation in _PRODUCTS and products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_odd or _is_attention(operation) else CheckpointPolicy.PREFER_RECOMPUTE

    return keep


def _is_attention(operation: Any) -> bool:
    return operation in _ATTENTION or (_stands_in[0] and operation is torch.ops.aten.new_empty.default)
