"""What a configuration asks for, by the axes of a trial."""

import pytest

from zerobench.ds_config.reading import zeropp_of


@pytest.mark.parametrize(("size", "found"), [(2, 2), (8, 8), (1, None), (0, None), ("auto", None)])
def test_a_group_of_one_rank_or_none_is_no_secondary_partition(size: object, found: int | None) -> None:
    config = {"zero_optimization": {"zero_hpz_partition_size": size, "zero_quantized_weights": True}}
    assert zeropp_of(config) == {"hpz_partition_size": found, "quantized_weights": True, "quantized_gradients": False}
