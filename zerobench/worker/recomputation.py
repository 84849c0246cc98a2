"""Activation checkpointing of a transformers model: backward runs blocks' forward pass again."""

from __future__ import annotations

from typing import Any

from zerobench.spec.recomputation import Checkpointing, is_recomputed


def enable_checkpointing(model: Any, asked: Checkpointing) -> None:
    """Recompute blocks in the backward pass; transformers renamed the method within the supported range."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for index, block in enumerate(blocks):
        block.gradient_checkpointing = is_recomputed(asked, index)
