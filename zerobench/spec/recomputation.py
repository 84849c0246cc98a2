"""Activation checkpointing: which blocks' forward pass backward runs again."""

from __future__ import annotations

Checkpointing = bool
"""What a trial asks for: false keeps all activations, true each block's input alone."""


def is_recomputed(asked: Checkpointing, _block: int) -> bool:
    """Whether a block, counted from 0, is run again."""
    return bool(asked)


def recomputed_blocks(asked: Checkpointing, num_blocks: int) -> int:
    """How many of the model's blocks are run again."""
    return sum(is_recomputed(asked, block) for block in range(num_blocks))


def attention_again(asked: Checkpointing, num_blocks: int) -> int:
    """In how many blocks a fused kernel's attention is computed again."""
    return recomputed_blocks(asked, num_blocks)


def blocks_after_the_last(asked: Checkpointing, num_blocks: int) -> int:
    """How many blocks behind the last that is run again have been passed by backward, and freed, when it gets there."""
    again = [block for block in range(num_blocks) if is_recomputed(asked, block)]
    return num_blocks - 1 - again[-1] if again else num_blocks
