"""What ZeRO++'s second copy of the parameters takes."""

import pytest

from zerobench.config.derived.zero_paper import BytesPerParameter
from zerobench.config.derived.zeropp import second_copy_bytes, second_copy_elements


@pytest.mark.parametrize(("sizes", "element"), [(BytesPerParameter(2, 2, 12), 2), (BytesPerParameter(4, 4, 8), 4)])
def test_the_second_copy_is_the_parameters_by_the_neighbours(sizes: BytesPerParameter, element: int) -> None:
    assert second_copy_bytes(1001, 4, sizes) == element * 1001 / 4
    assert second_copy_bytes(1001, None, sizes) == 0


def test_each_tensor_is_padded_to_all_ranks_before_the_neighbours_share_it() -> None:
    assert second_copy_elements((16,), 8, 2) == 8
    assert second_copy_elements((17, 1), 8, 2) == (24 + 8) // 2
    assert second_copy_elements((17, 1), 8, 8) == 3 + 1
