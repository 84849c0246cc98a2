"""What a configuration asks for, by the axes of a trial."""

from itertools import product

import pytest

from zerobench.config.deepspeed.reading import ELEMENT_BYTES, becomes_bf16_optimizer, zeropp_of
from zerobench.config.trial.trial import Offload


@pytest.mark.parametrize(("size", "found"), [(2, 2), (8, 8), (1, None), (0, None), ("auto", None)])
def test_a_group_of_one_rank_or_none_is_no_secondary_partition(size: object, found: int | None) -> None:
    config = {"zero_optimization": {"zero_hpz_partition_size": size, "zero_quantized_weights": True}}
    assert zeropp_of(config) == {"hpz_partition_size": found, "quantized_weights": True, "quantized_gradients": False}


def test_at_stage_1_bf16_optimizer_runs_where_sums_are_in_fp32_and_not_offloaded_and_in_a_pipeline_in_bf16() -> None:
    for stage, is_bf16, dtype, where in product((None, 0, 1, 2, 3), (True, False), (None, *ELEMENT_BYTES), Offload):
        alone = stage == 1 and str(dtype) in {"fp32", "float32", "float"} and where is not Offload.CPU
        found = becomes_bf16_optimizer(stage, is_bf16=is_bf16, accumulates_in=dtype, offload=where)
        assert found == (is_bf16 and (stage is None or alone))
