"""Fails by itself after it has begun to train."""

import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(10):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    if step == 1:
        raise ValueError("no such column: text")
