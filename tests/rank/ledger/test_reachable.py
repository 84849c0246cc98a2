"""Tensors of a model, optimizer or engine under construction are found as far as they exist."""

from collections.abc import Callable
from typing import Any

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here
from zerobench.common.vocabulary import Category

FLAT = {
    "DeepSpeedZeroOptimizer": "bit16_groups_flat",
    "DeepSpeedZeroOptimizer_Stage3": "fp16_partitioned_groups_flat",
    "FP16_Optimizer": "fp16_groups_flat",
    "BF16_Optimizer": "bf16_groups_flat",
}
"""What each of DeepSpeed's optimizers makes first of all."""


def found_of_halves() -> dict[str, tuple[int, list[str]]]:
    """By class: how much is found of one that has nothing yet, and the categories of what is found of one that has made
    its first flat tensor.
    """
    import torch
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    from zerobench.rank.ledger.reachable import walk_reachable

    found = {}
    for kind in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3, FP16_Optimizer, BF16_Optimizer):
        optimizer = kind.__new__(kind)
        before = len(list(walk_reachable()))
        flat = torch.ones(7)
        setattr(optimizer, FLAT[kind.__name__], [flat])
        named = [item.category.value for item in walk_reachable() if item.tensor is flat]
        found[kind.__name__] = (before, named)
        del optimizer
    return found


def test_of_an_optimizer_that_deepspeed_is_building_its_first_tensor_is_found(
    in_fork: Callable[..., Any],  # noqa: F811 -- pytest's fixture, imported above
) -> None:
    assert in_fork(found_of_halves) == {name: (0, [Category.PARAMETERS.value]) for name in FLAT}


def found_of_a_loop() -> list[tuple[str, int]]:
    """Walk of a model with nested layers, and of an optimizer that has taken a step."""
    import torch

    from zerobench.rank.ledger.reachable import walk_reachable

    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 5, bias=False)), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return sorted((item.category.value, item.tensor.numel()) for item in walk_reachable() if item.tensor.numel() > 5)


def test_a_tensor_is_walked_once_however_deep_it_lies(
    in_fork: Callable[..., Any],  # noqa: F811 -- pytest's fixture, imported above
) -> None:
    weight = (Category.PARAMETERS, Category.GRADIENTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
    assert in_fork(found_of_a_loop) == sorted((category.value, 15) for category in weight)
