"""Flat tensors of FSDP's first version are walked with their categories."""

from typing import Any

import pytest

from tests.rank.conftest import InFork, in_fork  # noqa: F401 -- pytest finds it here
from zerobench.common.vocabulary import Category

Held = list[tuple[Category, str, int]]


def held_after_a_pass(halves: bool) -> Held:
    """Category, type and elements of a wrapped layer of 20 weights within an unwrapped module."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    from zerobench.rank.ledger.fsdp_tensors import walk_flat

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    precision = MixedPrecision(param_dtype=torch.bfloat16) if halves else None
    wrapped: Any = FullyShardedDataParallel(
        torch.nn.Linear(3, 5), device_id=torch.device("cpu"), mixed_precision=precision, use_orig_params=False
    )
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), wrapped)
    model(torch.ones(2, 2)).float().sum().backward()
    return [(named.category, str(named.tensor.dtype), named.tensor.numel()) for named in walk_flat(model)]


@pytest.mark.parametrize("halves", [False, True])
def test_a_part_is_of_masters_in_16_bits_and_of_parameters_else_with_its_gradient(
    in_fork: InFork,  # noqa: F811
    halves: bool,
) -> None:
    of_part = Category.MASTER_WEIGHTS if halves else Category.PARAMETERS
    copy = [(Category.ALL_GATHER_BUFFERS, "torch.bfloat16", 20)] if halves else []
    assert in_fork(held_after_a_pass, halves) == [
        (of_part, "torch.float32", 20),
        *copy,
        (Category.GRADIENTS, "torch.float32", 20),
    ]
