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
    """Report of each call, by the call's name."""
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


def nodes_heard(rank: int, world_size: int, ranks_per_node: int, groups: list[list[int]]) -> list[tuple[int, int]]:
    """Size and nodes of each of `groups`, the world first, as `rank` hears of a collective in it, twice."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from zerobench.rank.ledger.heard_collectives import HearingCounter

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    made: list[Any] = [dist.group.WORLD, *map(dist.new_group, groups)]
    heard: list[tuple[int, int]] = []
    with HearingCounter(lambda: None, lambda *told: heard.append((told[1], told[3])), ranks_per_node):
        for group in [*made, *made]:
            dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group()
    first, again = heard[: len(made)], heard[len(made) :]
    assert first == again
    return first


@pytest.mark.parametrize(("rank", "groups", "nodes"), [
    (0, [[0, 1], [0, 3], [0, 4], [0, 2, 4, 6], [0]], [1, 1, 2, 2, 1]),
    (4, [[3, 4], [4, 5, 6, 7], [0, 4]], [2, 1, 2]),
    (8, [[8, 9], [0, 4, 8], [7, 8]], [1, 3, 2]),
])  # fmt: skip
def test_a_group_lies_on_as_many_nodes_as_have_a_rank_of_it(
    in_fork: Callable[..., Any],  # noqa: F811
    rank: int,
    groups: list[list[int]],
    nodes: list[int],
) -> None:
    """Ten ranks on nodes of four: 0 to 3, 4 to 7, 8 and 9."""
    expected = [(10, 3), *((len(group), count) for group, count in zip(groups, nodes, strict=True))]
    assert in_fork(nodes_heard, rank, 10, 4, groups) == expected
