"""Allocations of DeepSpeed's mixture of experts have names: gates, dispatch, experts, exchanged tensors."""

import socket
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here
from tests.rank.ledger.test_model_sites import CLASSES, ROWS, WIDTH, ledger_of
from zerobench.common.vocabulary import Category, Phase
from zerobench.records.progress import Rank

Rows = dict[tuple[Phase, Category], Any]
RANKS = 2


class Mixed(torch.nn.Module):
    """Somebody's own model with experts."""

    def __init__(self, **options):
        from deepspeed.moe.layer import MoE

        super().__init__()
        self.entry = torch.nn.Linear(WIDTH, WIDTH)
        expert = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(2 * WIDTH, WIDTH)
        )
        self.experts = torch.nn.ModuleList(MoE(WIDTH, expert, num_experts=4, **options) for _ in range(2))
        for layer in self.experts:
            layer.set_deepspeed_parallelism()  # type: ignore[operator] # torch types what it holds as tensor or module
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.entry(x)
        for layer in self.experts:
            out, _, _ = layer(x)
            x = x + out
        return self.head(x)


def one_step(options: dict[str, Any]) -> Rows:
    """One of two ranks, each with its part of the experts where `ep_size` says so."""
    from zerobench.rank.worlds.solo import join_alone

    join_alone(Rank(0, 0, RANKS, socket.gethostname(), 0), True, lambda *_call: None, "cpu")
    rows: Rows = ledger_of(Mixed(**options), functional.cross_entropy)
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {"k": 1, "use_rts": True},
        {"k": 2, "use_residual": True},
        {"k": 4, "drop_tokens": False},
        {"k": 1, "ep_size": RANKS, "noisy_gate_policy": "Jitter"},
    ],
    ids=["top 1", "top 2, residual", "top 4, nothing dropped", "experts on two ranks"],
)
def test_a_mixture_of_experts_leaves_less_than_a_hundredth_of_a_peak_without_a_name(in_fork, options):  # noqa: F811
    rows = in_fork(one_step, options)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        peak = rows[phase, Category.TOTAL].at_peak_bytes
        assert rows[phase, Category.UNATTRIBUTED].at_peak_bytes < 0.01 * peak
    assert rows[Phase.FORWARD, Category.ACTIVATIONS].live_bytes > 4 * ROWS * WIDTH * 4
