"""A loop whose model torch.compile makes one kernel of: nothing between its weights and its loss is kept."""

import sys

import torch


class Waves(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.empty(size, device="cuda"))

    def forward(self):
        return (self.weights.sin() * self.weights.cos()).tanh().exp().sum()


model = torch.compile(Waves(int(sys.argv[1])), mode=sys.argv[2])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model().backward()
    optimizer.step()
    optimizer.zero_grad()
