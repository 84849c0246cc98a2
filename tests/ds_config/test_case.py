"""What a DeepSpeed configuration comes to on so many ranks."""

from __future__ import annotations

import pytest

from zerobench.ds_config.case import Case


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({"stage": 3}, True),
        ({"stage": 3, "memory_efficient_linear": False}, False),
        ({"stage": 2, "memory_efficient_linear": True}, False),
        ({}, False),
    ],
    ids=str,
)
def test_deepspeeds_linear_layer_stands_at_stage_3_alone_and_unless_it_is_turned_off(
    zero: dict[str, object], *, expected: bool
) -> None:
    assert Case({"zero_optimization": zero}, world_size=2, num_params=10).replaces_linear is expected
