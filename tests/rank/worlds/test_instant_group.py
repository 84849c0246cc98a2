"""A group of which one rank is there: collectives are over at once, leave real numbers, and are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one

WORLD = 3
RANKS = (0, 2)


def join(rank: int, world_size: int = WORLD) -> list[tuple[str, int, int, int | None]]:
    """Make the group; calls are appended to the list that it gives."""
    from zerobench.rank.worlds import instant_group

    heard: list[tuple[str, int, int, int | None]] = []
    instant_group.join(rank, world_size, lambda *call: heard.append(call), "cpu")
    return heard


def numbers(*values: float) -> Any:
    import torch

    return torch.tensor(values)


def collectives(rank: int) -> dict[str, Callable[[], Any]]:
    """Each collective on tiny tensors; each gives the tensors that it leaves."""
    import torch
    import torch.distributed as dist

    own, whole = numbers(1.0 + rank, 10.0 + rank), torch.arange(6.0)
    parts = [numbers(each, each + 0.5) for each in range(WORLD)]

    def all_reduce() -> Any:
        dist.all_reduce(tensor := own.clone())
        return tensor

    def reduce() -> Any:
        dist.reduce(tensor := own.clone(), dst=0)
        return tensor

    def broadcast() -> Any:
        dist.broadcast(tensor := own.clone(), src=1)
        return tensor

    def all_gather() -> Any:
        gathered = [torch.full((2,), float("nan")) for _ in range(WORLD)]
        dist.all_gather(gathered, own)
        return torch.stack(gathered)

    def all_gather_into_tensor() -> Any:
        gathered = torch.full((6,), float("nan"))
        dist.all_gather_into_tensor(gathered, own)
        return gathered.view(WORLD, 2)

    def all_gather_in_place() -> Any:
        gathered = torch.full((6,), float("nan"))
        mine = gathered[2 * rank : 2 * rank + 2]
        mine.copy_(own)
        dist.all_gather_into_tensor(gathered, mine)
        return gathered.view(WORLD, 2)

    def all_gather_asynchronous() -> Any:
        gathered = torch.full((6,), float("nan"))
        work = dist.all_gather_into_tensor(gathered, own, async_op=True)
        work.wait()
        assert work.is_completed()
        return gathered.view(WORLD, 2)

    def all_gather_object() -> Any:
        gathered: list[Any] = [None] * WORLD
        dist.all_gather_object(gathered, {"rank": rank})
        assert gathered == [{"rank": rank}] * WORLD
        return torch.zeros(1)

    def reduce_scatter() -> Any:
        out = torch.full((2,), float("nan"))
        dist.reduce_scatter(out, parts)
        return out

    def reduce_scatter_tensor() -> Any:
        out = torch.full((2,), float("nan"))
        dist.reduce_scatter_tensor(out, whole)
        return out

    def reduce_scatter_in_place() -> Any:
        buffer = whole.clone()
        dist.reduce_scatter_tensor(mine := buffer[2 * rank : 2 * rank + 2], buffer)
        return mine

    def all_to_all() -> Any:
        out = torch.full((6,), float("nan"))
        dist.all_to_all_single(out, whole)
        return out

    def gather() -> Any:
        gathered = [torch.full((2,), float("nan")) for _ in range(WORLD)] if rank == 0 else None
        dist.gather(own, gathered, dst=0)
        return torch.stack(gathered) if gathered else own

    def scatter() -> Any:
        dist.scatter(out := torch.zeros(2), parts if rank == 0 else None, src=0)
        return out

    def barrier() -> Any:
        dist.barrier()
        return torch.zeros(1)

    return {name: call for name, call in locals().items() if callable(call) and not name.startswith("_")}


def run_all(rank: int) -> dict[str, dict[str, Any]]:
    """Every collective once: the numbers it leaves and what was heard of it."""
    import torch

    heard = join(rank)
    seen = {}
    for name, call in collectives(rank).items():
        heard.clear()
        left = call()
        seen[name] = {"left": left.tolist(), "finite": bool(torch.isfinite(left).all()), "heard": list(heard)}
    return seen


@pytest.fixture(scope="module", params=RANKS)
def ran(request, in_fork):
    return request.param, in_fork(run_all, request.param)


def test_every_collective_leaves_finite_numbers(ran):
    _, seen = ran
    assert len(seen) == 15
    for name, one in seen.items():
        assert one["finite"], name


def test_what_is_gathered_is_the_ranks_own_repeated(ran):
    rank, seen = ran
    own = [1.0 + rank, 10.0 + rank]
    names = ["all_gather", "all_gather_into_tensor", "all_gather_in_place", "all_gather_asynchronous"]
    for name in at_least_one([*names, *(["gather"] if rank == 0 else [])]):
        assert seen[name]["left"] == [own] * WORLD, name


def test_what_is_reduced_and_scattered_is_the_ranks_own_part(ran):
    rank, seen = ran
    assert seen["reduce_scatter"]["left"] == [rank, rank + 0.5]
    for name in ("reduce_scatter_tensor", "reduce_scatter_in_place"):
        assert seen[name]["left"] == [2 * rank, 2 * rank + 1], name
    assert seen["scatter"]["left"] == ([0.0, 0.5] if rank == 0 else [0.0, 0.0])


def test_what_is_reduced_or_broadcast_is_left_as_it_was(ran):
    rank, seen = ran
    for name in ("all_reduce", "reduce", "broadcast"):
        assert seen[name]["left"] == [1.0 + rank, 10.0 + rank], name


def test_each_call_is_heard_once_with_its_kind_the_groups_size_and_the_bytes_of_the_whole_message(ran):
    _, seen = ran
    part, whole = 2 * 4, 6 * 4
    expected = {
        "all_reduce": ("all_reduce", part),
        "reduce": ("reduce", part),
        "broadcast": ("broadcast", part),
        "all_gather": ("all_gather", whole),
        "all_gather_into_tensor": ("all_gather", whole),
        "all_gather_in_place": ("all_gather", whole),
        "all_gather_asynchronous": ("all_gather", whole),
        "reduce_scatter": ("reduce_scatter", whole),
        "reduce_scatter_tensor": ("reduce_scatter", whole),
        "reduce_scatter_in_place": ("reduce_scatter", whole),
        "all_to_all": ("all_to_all", whole),
        "gather": ("gather", whole),
        "scatter": ("scatter", whole),
        "barrier": ("barrier", 0),
    }
    for name, (kind, nbytes) in at_least_one(expected.items()):
        assert seen[name]["heard"] == [(kind, WORLD, nbytes, WORLD)], name


def use_a_smaller_group() -> list[Any]:
    """A group of two of the four ranks, as DeepSpeed makes for parts of the world."""
    import torch
    import torch.distributed as dist

    heard = join(3, 4)
    group = dist.new_group([1, 3])
    heard.clear()
    dist.all_gather_into_tensor(gathered := torch.zeros(4), numbers(5.0, 6.0), group=group)
    return [dist.get_rank(group), dist.get_world_size(group), gathered.tolist(), heard]


def test_a_smaller_group_counts_with_its_own_size(in_fork):
    assert in_fork(use_a_smaller_group) == [1, 2, [5.0, 6.0, 5.0, 6.0], [("all_gather", 2, 16, 2)]]


def use_groups_on_two_nodes() -> list[Any]:
    """Neighbours of one node, one rank of each, and all, of four ranks on two nodes."""
    import torch
    import torch.distributed as dist

    from zerobench.rank.worlds import instant_group

    heard: list[int | None] = []
    instant_group.join(0, 4, lambda *call: heard.append(call[-1]), "cpu", ranks_per_node=2)
    for group in (dist.new_group([0, 1]), dist.new_group([0, 2]), dist.group.WORLD):
        dist.all_reduce(torch.zeros(1), group=group)
    return heard[-3:]


def test_a_group_is_heard_with_the_nodes_that_its_ranks_lie_on(in_fork):
    assert in_fork(use_groups_on_two_nodes) == [1, 2, 2]


def fill_traffic() -> list[Any]:
    """Collectives within phases, through the account that a trial keeps."""
    import torch
    import torch.distributed as dist

    from zerobench.common.vocabulary import Phase, StepKind
    from zerobench.rank.ledger.traffic import Traffic
    from zerobench.rank.worlds import instant_group

    traffic = Traffic()
    instant_group.join(0, 2, traffic.collective, "cpu")
    alone = dist.new_group([0])
    dist.all_reduce(torch.zeros(100))  # before any phase
    for step in (StepKind.FIRST, StepKind.STEADY):
        with traffic.counted(step, Phase.BACKWARD):
            dist.all_reduce(torch.zeros(3))
            dist.all_reduce(torch.zeros(2, dtype=torch.bfloat16))
            dist.barrier()
            dist.all_reduce(torch.zeros(9), group=alone)  # nobody to send to
        with traffic.counted(step, Phase.STEP):
            dist.all_gather_into_tensor(torch.zeros(4), torch.zeros(2))
            traffic.add_flops(7)
            traffic.add_flops(8)
    traffic.forget(StepKind.FIRST)
    with traffic.counted(StepKind.STEADY, Phase.STEP):
        dist.all_gather_into_tensor(torch.zeros(4), torch.zeros(2))
    rows = [row.model_dump(mode="json") for row in traffic.collectives()]
    return [rows, [row.model_dump(mode="json") for row in traffic.flops()]]


def test_traffic_is_added_up_by_phase_kind_and_size_and_a_repeated_step_is_counted_once(in_fork):
    rows, flops = in_fork(fill_traffic)
    seen = [(r["step"], r["phase"], r["kind"], r["group_size"], r["calls"], r["message_bytes"]) for r in rows]
    assert seen == [
        ("steady", "backward", "all_reduce", 2, 2, 16),
        ("steady", "backward", "barrier", 2, 1, 0),
        ("steady", "step", "all_gather", 2, 2, 32),
    ]
    assert flops == [{"step": "steady", "phase": "step", "flops": 15}]


def _of_a_future_and_a_mesh() -> tuple[list[float], int, str]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    join(2)
    work = dist.all_reduce(numbers(1.0, 2.0), async_op=True)
    [reduced] = work.get_future().wait()
    mesh = init_device_mesh("cpu", (WORLD,))
    return reduced.tolist(), mesh.get_local_rank(), mesh.get_group().group_name


def test_a_collective_has_a_future_with_its_result_and_a_mesh_finds_the_group(in_fork):
    reduced, rank, name = in_fork(_of_a_future_and_a_mesh)
    assert reduced == [1.0, 2.0]
    assert rank == 2
    assert name


def _kept_of_an_input(device: str) -> list[bool]:
    """True if the input of an asynchronous gather lives before and after the wait, without other references."""
    import weakref

    import torch

    from zerobench.rank.worlds.instant_group import InstantGroup

    join(rank=0)
    own, gathered = torch.zeros(2, device=device), torch.zeros(2 * WORLD, device=device)
    work = InstantGroup(0, WORLD).all_gather_single(gathered, own)
    alive = weakref.ref(own)
    del own
    kept = [alive() is not None]
    work.wait()
    return [*kept, alive() is not None]


@pytest.mark.parametrize(("device", "kept"), [("meta", [True, False]), ("cpu", [False, False])])
def test_a_gpus_input_lives_until_somebody_waits_as_nccls_work_has_it(in_fork, device, kept):
    assert in_fork(_kept_of_an_input, device) == kept
