"""Costs of single operations, by their arguments."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import flop_counter
from torch.utils.flop_counter import flop_registry

from tests.tools.known import known
from zerobench.rank.ledger.costs import Cost, Where, cost_of, flops_of

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


def across(numel: int, dtype: torch.dtype, place: str) -> FakeTensor:
    return FakeTensor(FakeTensorMode(), torch.empty(numel, dtype=dtype, device="meta"), torch.device(place))


@pytest.mark.parametrize(
    ("to_device", "blocks", "moved", "cast"),
    [(True, True, 2, 6), (False, True, 4, 6), (True, False, 4, 0), (False, False, 2, 0)],
)
@pytest.mark.parametrize(("numel", "is_mapped"), [(8 << 20, False), (16 << 20, True)])
def test_a_copy_that_is_waited_for_is_cast_on_the_host_in_memory_of_its_own(
    numel: int, to_device: bool, blocks: bool, moved: int, cast: int, is_mapped: bool
) -> None:
    """Torch's copy_kernel_cuda: fp32 into bf16, to the device by 16 bits and from it by 32."""
    places = ("cpu", "cuda") if to_device else ("cuda", "cpu")
    source, result = across(numel, torch.float32, places[0]), across(numel, torch.bfloat16, places[1])
    found = cost_of(ATEN.copy_.default, (result, source, not blocks), {}, result)
    is_mapped = is_mapped or moved == 4  # 32 MiB of them
    assert found == Cost(
        Where.UP if to_device else Where.DOWN,
        moved_bytes=moved * numel,
        blocks=blocks,
        cast_bytes=cast * numel,
        mapped_bytes=moved * numel if cast and is_mapped else 0,
    )


def test_what_the_host_makes_anew_is_mapped_where_malloc_does_not_keep_it() -> None:
    small, large = torch.ones(1 << 20), torch.ones(8 << 20)
    assert [known(cost(ATEN.sqrt.default, each)).mapped_bytes for each in (small, large)] == [0, large.nbytes]
    assert known(cost(ATEN.sqrt_.default, large)).mapped_bytes == 0


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


def test_flops_by_shapes_alone_are_those_that_torchs_own_wrapper_counts() -> None:
    left, right = torch.empty(3, 4), torch.empty(4, 5)
    formula = flop_registry[torch.ops.aten.mm]
    assert flops_of(formula, (left, right), {}, left @ right) == formula(left, right, out_val=left @ right) == 120
    picture, weight = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3)
    args = (picture, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    out = torch.ops.aten.convolution(*args)
    formula = flop_registry[torch.ops.aten.convolution]
    assert flops_of(formula, args, {}, out) == formula(*args, out_val=out) > 0
    query = torch.empty(1, 2, 8, 4)
    formula = flop_registry[torch.ops.aten._scaled_dot_product_flash_attention]
    named = {"scale": 1.0}
    results = (query, query[..., 0])
    counted = flops_of(formula, (query, query, query), named, results)
    assert counted == formula(query, query, query, **named, out_val=results) > 0


def test_grouped_heads_are_counted_for_every_query_head_by_formulas_that_refuse_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of torch 2.11."""

    def of_one_shape(*shapes: torch.Size) -> int:
        assert len({(shape[0], shape[1], shape[3]) for shape in shapes}) == 1
        return 1000 * len(shapes) + shapes[-1][2]

    for name in ("sdpa_flop_count", "sdpa_backward_flop_count"):
        monkeypatch.setattr(flop_counter, name, of_one_shape)
    query, few = torch.empty(1, 8, 16, 4), torch.empty(1, 2, 11, 4)
    formula = flop_registry[torch.ops.aten._scaled_dot_product_cudnn_attention]
    assert flops_of(formula, (query, few, few, None, True), {"scale": 1.0}, (query, query[..., 0])) == 3011
    formula = flop_registry[torch.ops.aten._scaled_dot_product_cudnn_attention_backward]
    assert flops_of(formula, (query, query, few, few, query), {}, (query, few, few)) == 4011


def test_a_formula_that_asks_for_tensors_is_given_them() -> None:
    query = torch.empty(2, 3)
    assert flops_of(lambda tensor, out_val: tensor.numel() + out_val.numel(), (query,), {}, query) == 12
