"""Prints the slowdown of a bf16 product against fp32 on this processor, as one number.

torch multiplies 16-bit matrices with oneDNN if the processor has suitable instructions (AVX-512 and later), otherwise
in loops that take up to 60 times as long as fp32 (torch 2.13, aten/src/ATen/native/CPUBlas.cpp, gemm). Processor flags
do not decide alone, since ONEDNN_MAX_CPU_ISA can disable instructions. So it is measured, in milliseconds, in a
separate process: `python -m zerobench.rank.loop.probe_bf16`.
"""

import time

import torch

ROWS, INNER, COLUMNS = 128, 256, 512
ROUNDS = 5


def slowdown() -> float:
    """Slowdown of the worse of two layouts, those of weights in the forward and in the backward pass."""
    return max(
        _seconds(torch.bfloat16, turned=is_turned) / _seconds(torch.float32, turned=is_turned)
        for is_turned in (False, True)
    )


def _seconds(dtype: torch.dtype, *, turned: bool) -> float:
    """Shortest time of a few products: other load on the machine can only make one longer."""
    left = torch.ones(ROWS, INNER, dtype=dtype)
    right = torch.ones(COLUMNS, INNER, dtype=dtype).T if turned else torch.ones(INNER, COLUMNS, dtype=dtype)
    left @ right  # the first one also chooses the kernel
    shortest = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        left @ right
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(slowdown())  # noqa: T201 -- the caller reads it
