"""Leaves a small tensor in each large block that it has given back, and then wants a large one."""

import torch

GIB = 1 << 30


def take(num_bytes):
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


blocks = [take(2 * GIB) for _ in range(6)]
del blocks
kept = [take(5 * GIB // 4) for _ in range(6)]
large = take(4 * GIB)
print("ended", len(kept), large.numel())
