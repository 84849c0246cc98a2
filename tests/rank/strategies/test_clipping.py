"""Error of torch's clipping on a CPU in the norm of a large tensor: the README states it, and parity depends on it."""

import pytest
import torch


def error_of_norm(numel: int) -> float:
    """Relative error of torch's norm for clipping, for one tensor of `numel` fp32 elements."""
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    found = torch.nn.utils.get_total_norm([tensor])
    return float(found.double() / tensor.double().norm() - 1)


def test_a_norm_of_four_million_elements_is_nearly_a_ten_thousandth_too_small() -> None:
    assert -1e-4 < error_of_norm(4 * 2**20) < -5e-5


@pytest.mark.parametrize("numel", [1000, 100_000])
def test_a_norm_of_few_elements_is_right_to_a_millionth(numel: int) -> None:
    assert abs(error_of_norm(numel)) < 1e-6
