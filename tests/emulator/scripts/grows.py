"""Fits until its first backward pass."""

import torch

model = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384, bias=False) for _ in range(16))).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(10):
    model(torch.randn(64, 16384, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
