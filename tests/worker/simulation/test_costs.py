"""What single operations cost, by their arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zerobench.worker.simulation.costs import Cost, Where, cost_of

ATEN = torch.ops.aten


def cost(func: Any, *args: Any, **kwargs: Any) -> Cost | None:
    return cost_of(func, args, kwargs, func(*args, **kwargs))


def test_a_product_is_told_by_its_shape_and_how_often() -> None:
    left, right = torch.ones(3, 4), torch.ones(4, 5)
    assert cost(ATEN.mm.default, left, right) == Cost(Where.HOST, (3, 5, 4))
    assert cost(ATEN.addmm.default, torch.ones(5), left, right) == Cost(Where.HOST, (3, 5, 4))
    assert cost(ATEN.bmm.default, torch.ones(7, 3, 4), torch.ones(7, 4, 5)) == Cost(Where.HOST, (3, 5, 4), 7)


@pytest.mark.parametrize(
    ("func", "args", "nbytes"),
    [
        (ATEN.add.Tensor, (torch.ones(10), torch.ones(10)), 120),
        (ATEN.add_.Tensor, (torch.ones(10), torch.ones(10)), 120),
        (ATEN.zero_.default, (torch.ones(10),), 40),
        (ATEN.copy_.default, (torch.ones(10), torch.ones(10)), 80),
        (ATEN._foreach_add_.List, ([torch.ones(10)] * 2, [torch.ones(10)] * 2), 240),
        (ATEN.mul.Tensor, (torch.ones(10), torch.ones(1).expand(10)), 84),
        (ATEN.embedding.default, (torch.ones(1000, 4), torch.arange(3)), 96),
    ],
)
def test_another_kernel_is_told_by_what_it_reads_and_writes(func: Any, args: Any, nbytes: int) -> None:
    found = cost(func, *args)
    assert found is not None
    assert found.moved_bytes == nbytes


@pytest.mark.parametrize(
    ("func", "args"), [(ATEN.t.default, (torch.ones(2, 3),)), (ATEN.empty_like.default, (torch.ones(2),))]
)
def test_views_and_allocations_cost_nothing(func: Any, args: Any) -> None:
    assert cost(func, *args) is None


def test_fused_attention_on_a_cpu_is_told_by_its_flops() -> None:
    """Two products forward and five backward, of 7 x 11 scores in 2 x 3 heads of 5; torch's counter has neither."""
    query, key, value = torch.ones(2, 3, 7, 5), torch.ones(2, 3, 11, 5), torch.ones(2, 3, 11, 5)
    forward = ATEN._scaled_dot_product_flash_attention_for_cpu.default
    product = 2 * (2 * 3) * 7 * 11 * 5
    assert cost(forward, query, key, value) == Cost(Where.HOST, attention_flops=2 * product)
    out, logsumexp = forward(query, key, value)
    backward = ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default
    found = cost(backward, out, query, key, value, out, logsumexp, 0.0, False)
    assert found == Cost(Where.HOST, attention_flops=5 * product, is_backward=True)
