"""The states of random generators that activation checkpointing keeps, 5 kB for each block that it will compute again.

torch's generator makes such a tensor in C++, below what a dispatch mode sees (torch/csrc/Generator.cpp, getState), so
that only the allocator knows of it. Its maker here is torch/utils/checkpoint.py, which keeps it for the backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_KEEPER = "torch/utils/checkpoint.py"


@contextmanager
def told_of_random_states(tell: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """While open, `tell` each state that checkpointing takes of the CPU's generator; in all threads."""
    get_rng_state = torch.get_rng_state
    listeners = [tell]

    def get_and_tell() -> torch.Tensor:
        state = get_rng_state()
        if sys._getframe(1).f_code.co_filename.endswith(_KEEPER):
            for listener in listeners:
                listener(state)
        return state

    torch.get_rng_state = get_and_tell
    try:
        yield
    finally:
        torch.get_rng_state = get_rng_state
        listeners.clear()  # a module imported meanwhile may have taken our function for good
