"""Simulated tensors in place of a module's own: what torch's Module._apply does to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor


class Tied(torch.nn.Module):
    """Two layers with one weight, which only stands for the tensors in it, as a DTensor does."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head, self.alone = (torch.nn.Linear(8, 4, bias=False, device="meta") for _ in range(3))
        halves = (TwoTensor(torch.empty(4, 8, device="meta"), torch.empty(4, 8, device="meta")) for _ in range(2))
        self.embedding.weight, self.alone.weight = map(torch.nn.Parameter, halves)
        self.head.weight = self.embedding.weight


def give_memory(simulated: bool) -> list[Any]:
    """Whether two weights are tied, whether a third is, whether memory is missing, and for how many it was asked."""
    from zerobench.rank.worlds.simulation import tensors

    if simulated:
        tensors.install()
    model, asked = Tied(), []

    def given(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        asked.append(tensor)
        return torch.empty_like(tensor, device="cpu")

    for _ in range(2):  # the second time there is nothing left to do
        model._apply(given)
    embedding, head, alone = model.embedding.weight, model.head.weight, model.alone.weight
    return [embedding is head, embedding is alone, head.is_meta, len(list(model.parameters())), len(asked)]


@pytest.mark.parametrize("simulated", [True, False])
def test_a_tied_weight_that_is_exchanged_stays_tied_and_is_given_memory_once(in_fork, simulated):
    assert in_fork(give_memory, simulated) == [True, False, False, 2, 2]
