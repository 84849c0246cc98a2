"""A buffer that a collective's thread holds on to is a buffer of communication in the step that finds it, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.rank.real_ranks import RunTrial, run_rank, trials_in_forks
from tests.rank.training.test_adapters import LORA, TRAINED, rows, spec
from zerobench.common.vocabulary import Category, Phase, StepKind


def run_with_late_threads(asked: str, folder: str, rank: int, port: int) -> str:
    """A rank where gloo lets go of what it reduced only when it reduces as much again: a step later."""
    import torch.distributed as dist

    reduce: Any = dist.all_reduce
    held: dict[int, Any] = {}

    def late(tensor: Any, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        work = reduce(tensor, *args, async_op=True, **kwargs)
        held[tensor.numel()] = work
        return work if async_op else work.wait()

    dist.all_reduce = late
    return run_rank(asked, folder, rank, port)


@pytest.fixture(scope="module")
def ran(in_fork: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> RunTrial:
    return trials_in_forks(in_fork, tmp_path_factory, run_with_late_threads)


@pytest.mark.parametrize("warmup", [0, 2])
def test_what_gloo_still_holds_of_the_step_before_is_reduce_buffers(ran: RunTrial, warmup: int) -> None:
    [rank, _] = ran(spec(strategy="zero0", steps={"warmup": warmup, "timed": 1, "memory": 1}, **LORA))
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        [total], [reduced], [unnamed] = (
            [row for row in rows(rank, category, StepKind.STEADY) if row.phase is phase]
            for category in (Category.TOTAL, Category.REDUCE_BUFFERS, Category.UNATTRIBUTED)
        )
        assert reduced.live_bytes == pytest.approx(4 * TRAINED, abs=64)  # and a norm
        assert (unnamed.own_peak_bytes or 0) <= 0.01 * (total.own_peak_bytes or 0), phase
