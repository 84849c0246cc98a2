"""Quantised matrices hold what bitsandbytes' hold, byte for byte, and multiply as the matrix that they stand for."""

import pytest
import torch

from zerobench.config.trial.adapter import quantised_bytes
from zerobench.rank.training.quantised import QuantisedLinear

# Of `example` below, by bitsandbytes 0.50.2: quantize_4bit(quant_type="nf4", blocksize=64) and int8_vectorwise_quant.
NF4_CODES = (
    "777678669857a758a55a946b738c53bb34d828d52bd23ea16e51be21ec05f70ac43cb25d828d42cc23d917e51bd22eb16e61ae21ec14f809"
    "f31dd13f908f40de23da16e61be22db15e71ae31dd14e808e41de12ea07f50ce11ec05f60bf21ed04e819e31dd13e917e41ce12eb16f60be"
    "21ec15f70af21ed13f908f30de12fb07"
)
INT8_CODES = [0, 2, -1, -4, 3, 5, -5, -5, 8, 4, -11, -2, 14, -2, -15, 6]
INT8_SCALES = [121.875, 251.375]


def example() -> torch.Tensor:
    grows = torch.arange(1, 257).view(2, 128)
    return torch.sin(torch.arange(256.0) * 1.7).view(2, 128) * grows


def matrix(kind: str, whole: torch.Tensor, dtype: torch.dtype = torch.float32) -> QuantisedLinear:
    rows, columns = whole.shape
    base = torch.nn.Linear(columns, rows, bias=False)
    made = QuantisedLinear(base, (columns, rows), kind, torch.device("cpu"), dtype)
    made.weight.data.copy_(made.quantise(whole.to(dtype)))
    return made


def test_codes_are_those_of_bitsandbytes() -> None:
    assert bytes(matrix("nf4", example()).weight.view(torch.uint8).tolist()).hex() == NF4_CODES
    eight = matrix("int8", example())
    assert eight.weight[:16].tolist() == INT8_CODES
    assert eight.scale.tolist() == pytest.approx(INT8_SCALES, rel=1e-3)


@pytest.mark.parametrize(("kind", "error"), [("nf4", 0.14), ("int8", 0.004)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_holds_what_the_closed_form_says_and_stands_for_the_matrix(
    kind: str, error: float, dtype: torch.dtype
) -> None:
    whole = torch.randn(520, 4096, generator=torch.Generator().manual_seed(0))
    made = matrix(kind, whole, dtype)
    held = (made.weight.nbytes, sum(buffer.nbytes for buffer in made.buffers()))
    assert held == quantised_bytes(kind, 520, 4096)
    stands_for = made.dequantised(made.weight, made.scales())
    assert (stands_for.float() - whole).abs().max() <= error * whole.abs().max() + whole.abs().max() * 2**-7
    hidden = torch.randn(3, 4096, dtype=dtype).requires_grad_()
    made(hidden).sum().backward()
    torch.testing.assert_close(made(hidden), hidden @ stands_for.T)
    torch.testing.assert_close(hidden.grad, torch.ones(3, 520, dtype=dtype) @ stands_for)


def test_a_matrix_is_made_whole_in_no_more_memory_than_it_and_its_scales_take() -> None:
    """As bitsandbytes' kernels do: a simulated rank holds their results and nothing else."""
    made = matrix("nf4", torch.randn(520, 4096), torch.bfloat16)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        scales = made.scales()
        whole = made.dequantised(made.weight, scales)
    taken = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
    assert whole.nbytes + scales.nbytes <= taken < whole.nbytes + scales.nbytes + 8192


def test_a_matrix_that_is_no_whole_number_of_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple of 64 elements"):
        matrix("nf4", torch.zeros(3, 50))
