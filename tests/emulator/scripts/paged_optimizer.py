"""Trains with bitsandbytes' paged optimizer, whose states are managed memory."""

import bitsandbytes
import torch

layers = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)]).cuda()
optimizer = bitsandbytes.optim.PagedAdamW32bit(layers.parameters(), lr=1e-4)
for _ in range(10):
    layers(torch.randn(16, 4096, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
