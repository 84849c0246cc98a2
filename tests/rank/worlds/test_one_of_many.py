"""One rank among imagined others: what its strategy hands to its collectives in a step, and what it holds then."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch

from tests.rank.strategies.test_one_rank import DEEPSPEED, SMALL, Bytes, Fields, N, held, made, stepped
from tests.rank.strategies.test_torch_loop import batches
from zerobench.common.vocabulary import Phase
from zerobench.rank.ledger.recorder import Marks, PlainPhases
from zerobench.rank.worlds import instant_group

Traffic = dict[str, tuple[int, int]]


class Part(NamedTuple):
    """One rank of some."""

    strategy: str
    fields: Fields
    rank: int
    ranks: int
    phases: str
    """Of two steps."""
    moves: Traffic
    """Calls and bytes of the messages of two steps; `told` is what the strategy itself counts."""
    holds: Bytes


def states(share: int, tensors: int = 21, **more: int) -> Bytes:
    """Bytes of a rank that updates `share` parameters."""
    moments = {"first_moment": 4 * share, "second_moment": 4 * share, "other_optimizer_states": 4 * tensors}
    return {"parameters": 4 * share, "model_buffers": 64, **moments, **more}


ONE_EACH: dict[str, Any] = {"gradient_accumulation_steps": 1}
STEP = "fLb" * 3 + "s"
ROOT, BLOCK = 2 * 64 * 32 + 32, (N - 2 * 64 * 32 - 32) // 2
TIED = 4 * 64 * 32
PASSED = 2 * 2 * 4 * (2 * 16 * 32)
"""Hidden states of two micro-batches in each of two steps."""
NORMS = {"all_reduce": (4, 4 * 4)}
"""One for the norm and one that is waited for before the update."""
ALL_GATHERED = {"all_gather": (6 * 5, 6 * 4 * (ROOT + 4 * BLOCK)), "reduce_scatter": (6 * 3, 6 * 4 * N)}
FIRST, LAST = {"pipeline_buffers": 2 * 4096}, {"pipeline_buffers": 2 * 4096}
TOLD = {"told send": (4, PASSED), "told recv": (4, PASSED)}
SERVED = {"told send": (84, 16 * N), "told recv": (84, 16 * N)}

PARTS = [
    Part("ddp", {}, 1, 2, 2 * STEP, {"all_reduce": (2, 2 * 4 * N)}, states(N, gradients=4 * N)),
    Part("fsdp", {}, 1, 2, 2 * STEP, ALL_GATHERED | {"all_reduce": (2, 2 * 4 * 21)}, states(N // 2)),
    Part(
        "fsdp",
        {"mics_shard_size": 2},
        0,
        4,
        2 * STEP,
        ALL_GATHERED | {"all_reduce": (2 + 2 * 3, 2 * 4 * 21 + 2 * 4 * N // 2)},
        states(N // 2),
    ),
    Part("tensor", {}, 0, 2, 2 * STEP, {}, states(N // 2 + 5 * 32 // 2)),
    Part("pipeline", ONE_EACH, 0, 2, 2 * "ffbbs", NORMS | TOLD, states(N // 2 - 16, 10, **FIRST)),
    Part("pipeline", ONE_EACH, 1, 2, 2 * "ffLbffLbs", NORMS | TOLD, states(N // 2 + 16, 11, **LAST)),
    Part(
        "pipeline",
        ONE_EACH | {"tied": True},
        1,
        2,
        2 * "ffLbffLbs",
        TOLD | {"all_reduce": (6, 16 + 2 * TIED), "told all_reduce": (2, 2 * TIED)},
        states(N // 2 + 16, 11, **LAST),
    ),
    Part(
        "pipeline",
        ONE_EACH | DEEPSPEED,
        0,
        2,
        2 * "ffbbbs",
        TOLD | {"all_reduce": (2 * 4, 2 * (4 * (N // 2 - 16) + 3 * 4))},
        states(N // 2 - 16, 10, pipeline_buffers=4096, inputs=512),
    ),
    Part("parameter-server", {}, 0, 3, 2 * "bs", SERVED, states(N)),
    Part("parameter-server", {"consistency": "async"}, 0, 3, 4 * "bs", SERVED, states(N)),
    Part(
        "parameter-server",
        {},
        2,
        3,
        2 * STEP,
        {"told send": (42, 8 * N), "told recv": (42, 8 * N)},
        {"parameters": 4 * N, "model_buffers": 64},
    ),
    Part(
        "zero2",
        SMALL,
        1,
        2,
        2 * STEP,
        {"all_reduce": (2 * (3 * 21 + 1), 2 * (3 * 4 * N + 4)), "all_gather": (2, 2 * 4 * N)},
        {**states(N // 2, master_weights=4 * N // 2), "parameters": 4 * N, "other_optimizer_states": 4},
    ),
]


Heard = Counter[tuple[str, str]]


@pytest.fixture
def heard() -> Heard:
    """Calls and bytes by kind."""
    return Counter()


@pytest.fixture
def join(heard: Heard) -> Iterator[Callable[[int, int], None]]:
    """Become one rank of some that are not there."""
    import deepspeed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)
        patch.setattr(import_module("deepspeed.utils.groups"), "mpu", None)  # where the last pipeline's ranks stay

        def become(rank: int, ranks: int) -> None:
            for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}.items():
                patch.setenv(name, str(value))
            listen = partial(_count, heard, "")
            instant_group.join(rank, ranks, listen, "cpu", ranks_per_node=ranks)
            deepspeed.init_distributed(dist_backend=instant_group.BACKEND, auto_mpi_discovery=False)

        yield become
        torch.distributed.destroy_process_group()


def _count(heard: Heard, prefix: str, kind: str, _ranks: int, nbytes: int, _nodes: int | None = None) -> None:
    heard[prefix + kind, "calls"] += 1
    heard[prefix + kind, "bytes"] += nbytes


def name_of(part: Part) -> str:
    return f"{part.strategy} {part.rank} of {part.ranks} {' '.join(map(str, part.fields))}"


@pytest.mark.parametrize("part", PARTS, ids=name_of)
def test_one_of_many_moves_and_holds_what_its_strategy_says_to_the_byte(
    heard: Heard, join: Callable[[int, int], None], part: Part
) -> None:
    join(part.rank, part.ranks)
    ours = made(part.strategy, gpus_per_node=part.ranks, heard=partial(_count, heard, "told "), **part.fields)
    heard.clear()
    losses, said, norms = stepped(ours, each=2 if part.strategy == "pipeline" else 3)
    moved = {kind: (heard[kind, "calls"], heard[kind, "bytes"]) for kind in {kind for kind, _ in heard}}
    assert said == part.phases
    assert moved.pop("broadcast", (2, 0))[0] == 2  # DDP deals its buckets anew once; buffers stay as they are
    assert moved == part.moves or part.strategy == "tensor"
    assert held(ours) == part.holds
    if part.strategy == "parameter-server" and part.rank == 0:  # the imagined workers always have the first weights
        assert ours.staleness_steps == ([0, 1, 2, 3] if part.fields else [0, 0, 1, 1])
    assert all(math.isfinite(one) for one in (*losses, *norms))


def test_a_gradient_on_its_way_back_is_held_within_the_pass_that_made_it(
    join: Callable[[int, int], None],
) -> None:
    join(1, 2)
    ours, passed = made("pipeline", gpus_per_node=2, **ONE_EACH), []

    class Watching(PlainPhases):
        @contextmanager
        def phase(self, phase: Phase) -> Iterator[None]:
            with super().phase(phase):
                yield
            passed.append(held(ours)["pipeline_buffers"] // 4096)

    ours.job.norms.begin("memory")
    ours.step(batches(0, 2), 1e-3, Watching(Marks()))
    assert passed == [2, 2, 3, 2, 2, 3, 2]
