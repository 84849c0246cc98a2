"""How many times longer this processor takes for a product in bf16 than in fp32, printed as one number.

torch multiplies 16-bit matrices by oneDNN where the processor has instructions that oneDNN knows (AVX-512 and later),
and otherwise by loops that take up to 60 times as long as fp32 does (torch 2.13, aten/src/ATen/native/CPUBlas.cpp,
gemm). No flag of the processor says so alone: ONEDNN_MAX_CPU_ISA turns instructions off too. So it is tried, in
milliseconds, in a process of its own: `python -m zerobench.rank.loop.probe_bf16`.
"""

import time

import torch

ROWS, INNER, COLUMNS = 128, 256, 512
ROUNDS = 5


def slowdown() -> float:
    """The worse of two layouts, as weights have them in the forward and in the backward pass."""
    return max(
        _seconds(torch.bfloat16, turned=is_turned) / _seconds(torch.float32, turned=is_turned)
        for is_turned in (False, True)
    )


def _seconds(dtype: torch.dtype, *, turned: bool) -> float:
    """The shortest of a few products: what else the machine does only ever makes one longer."""
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
