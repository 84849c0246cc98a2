"""Every collective between two real ranks is heard once, with its group and the bytes of its whole message."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here
from tests.tools.at_least_one import at_least_one
from zerobench.launch.run.launcher import free_port

RANKS, ELEMENTS = 2, 6
PART = 4 * ELEMENTS
"""Bytes of what one rank holds."""
Heard = list[tuple[str, int, int]]


def collectives(rank: int, port: int) -> dict[str, Heard]:
    """What was heard of each call, by the call's name."""
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    from zerobench.rank.ledger.heard_collectives import HearingCounter

    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    part, whole = torch.ones(ELEMENTS), torch.ones(RANKS * ELEMENTS)
    parts = [torch.ones(ELEMENTS) for _ in range(RANKS)]
    group: Any = dist.group.WORLD
    alone: Any = [dist.new_group([one]) for one in range(RANKS)][rank]
    first = rank == 0
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(part),
        "all_reduce of one rank": lambda: dist.all_reduce(part, group=alone),
        "reduce": lambda: dist.reduce(part, 0),
        "broadcast": lambda: dist.broadcast(part, 0),
        "barrier": dist.barrier,
        "all_gather": lambda: dist.all_gather(parts, part),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all([torch.ones(ELEMENTS) for _ in parts], parts),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.ones(RANKS * ELEMENTS), whole),
        "gather": lambda: dist.gather(part, parts if first else None),
        "scatter": lambda: dist.scatter(part, parts if first else None),
        "functional all_reduce": lambda: functional.all_reduce(part, "sum", group),
        "functional all_gather": lambda: functional.all_gather_tensor(part, 0, group),
        "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(whole, "sum", 0, group),
        "functional broadcast": lambda: functional.broadcast(part, 0, group),
        "several all_reduce": lambda: functional.all_reduce_coalesced([part, part], "sum", group),
        "several all_gather": lambda: functional.all_gather_into_tensor_coalesced([part, part], group),
        "several reduce_scatter": lambda: functional.reduce_scatter_tensor_coalesced([whole], "sum", [0], group),
        "no collective": lambda: part + part,
    }
    found: dict[str, Heard] = {}
    for name, call in calls.items():
        heard: Heard = []
        with HearingCounter(lambda: None, lambda *told, into=heard: into.append(told[:3]), ranks_per_node=RANKS):
            call()
        found[name] = heard
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def heard(in_fork: Callable[..., Any]) -> list[dict[str, Heard]]:  # noqa: F811
    """By rank."""
    port = free_port()
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(in_fork, collectives, rank, port) for rank in range(RANKS)]
        return [one.result() for one in asked]


@pytest.mark.parametrize(
    ("call", "kind", "nbytes"),
    [
        ("all_reduce", "all_reduce", PART),
        ("reduce", "reduce", PART),
        ("broadcast", "broadcast", PART),
        ("barrier", "barrier", 0),
        ("all_gather", "all_gather", RANKS * PART),
        ("all_gather_into_tensor", "all_gather", RANKS * PART),
        ("reduce_scatter", "reduce_scatter", RANKS * PART),
        ("reduce_scatter_tensor", "reduce_scatter", RANKS * PART),
        ("all_to_all", "all_to_all", RANKS * PART),
        ("all_to_all_single", "all_to_all", RANKS * PART),
        ("gather", "gather", RANKS * PART),
        ("scatter", "scatter", RANKS * PART),
        ("functional all_reduce", "all_reduce", PART),
        ("functional all_gather", "all_gather", RANKS * PART),
        ("functional reduce_scatter", "reduce_scatter", RANKS * PART),
        ("functional broadcast", "broadcast", PART),
        ("several all_reduce", "all_reduce", 2 * PART),
        ("several all_gather", "all_gather", 2 * RANKS * PART),
        ("several reduce_scatter", "reduce_scatter", RANKS * PART),
    ],
)
def test_a_collective_is_heard_once_on_each_rank_with_its_whole_message(heard, call, kind, nbytes):
    assert [one[call] for one in heard] == [[(kind, RANKS, nbytes)]] * RANKS


def test_a_group_is_counted_by_its_own_ranks_and_other_operations_are_not_heard(heard):
    for one in at_least_one(heard):
        assert one["all_reduce of one rank"] == [("all_reduce", 1, PART)]
        assert one["no collective"] == []
