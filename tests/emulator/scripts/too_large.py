"""Asks for more than any GPU has, in its second layer."""

import torch

model = torch.nn.Sequential(*(torch.nn.Linear(100_000, 100_000, bias=False, device="meta") for _ in range(12)))
model = model.to_empty(device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(10):
    loss = model(torch.randn(8, 100_000, device="cuda")).sum()
    loss.backward()
    optimizer.step()
