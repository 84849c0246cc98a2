"""Tensors of FSDP2 on two ranks are walked with their categories at each moment of a step, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here
from tests.tools.at_least_one import at_least_one
from zerobench.common.vocabulary import Category, Place
from zerobench.launch.run.launcher import free_port

RANKS, WEIGHT, BIAS = 2, 32, 4
WHOLE, PART = WEIGHT + BIAS, (WEIGHT + BIAS) // RANKS
Held = Counter[tuple[Category, Place | None]]


def moments(rank: int, port: int, *, halves: bool, offloads: bool) -> dict[str, Held]:
    """Bytes by name and place at each moment of two micro-steps, and of a third that reduces nothing."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    from zerobench.rank.ledger.fsdp_tensors import walk_fsdp
    from zerobench.rank.ledger.storages import Storage, StorageCounter

    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    module: Any = torch.nn.Linear(8, 4)
    module.register_buffer("table", torch.ones(5))
    fully_shard(
        module,
        mesh=init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("replicate", "shard")),
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16 if halves else None),
        offload_policy=CPUOffloadPolicy(pin_memory=False) if offloads else OffloadPolicy(),
    )
    optimizer = torch.optim.SGD(module.parameters(), momentum=0.9)
    found: dict[str, Held] = {}

    def note(moment: str) -> None:
        walked = walk_fsdp(module, optimizer, are_masters=halves, place=Place.HOST if offloads else None)
        counter, held = StorageCounter(), dict[Storage | None, tuple[Category, Place | None]]()
        for name in walked:
            counter.see(name.tensor)
            held[counter.find(name.tensor)] = name.category, name.place
        found[moment] = Counter()
        for storage, told in held.items():
            if storage is not None:  # what is resharded is a tensor without memory
                found[moment][told] += storage.nbytes

    def passes() -> None:
        module(torch.ones(2, 8)).sum().backward()

    note("built")
    waiting = module.unshard(async_op=True)
    note("being gathered")
    waiting.wait()
    note("gathered")
    module.reshard()
    module.set_requires_all_reduce(False)
    passes()
    note("reduced within the group")
    module.set_requires_all_reduce(True)
    passes()
    note("reduced")
    optimizer.step()
    note("updated")
    module.set_requires_gradient_sync(False)
    passes()
    note("not reduced")
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def held(in_fork: Callable[..., Any]) -> Callable[..., list[dict[str, Held]]]:  # noqa: F811
    """The moments of both ranks."""

    def of(*, halves: bool, offloads: bool = False) -> list[dict[str, Held]]:
        port = free_port()
        with ThreadPoolExecutor() as threads:
            asked = [threads.submit(in_fork, _moments, rank, port, halves, offloads) for rank in range(RANKS)]
            return [one.result() for one in asked]

    return of


def _moments(rank: int, port: int, halves: bool, offloads: bool) -> dict[str, Held]:
    return moments(rank, port, halves=halves, offloads=offloads)


BUFFERS = {(Category.MODEL_BUFFERS, None): 4 * 5}


def test_in_16_bits_parts_are_masters_and_copies_and_gradients_half_as_large(held):
    masters = BUFFERS | {(Category.MASTER_WEIGHTS, None): 4 * PART}
    gathered = masters | {(Category.GATHERED_PARAMETERS, None): 2 * WHOLE}
    moment = masters | {(Category.FIRST_MOMENT, None): 4 * PART}
    gradients = (Category.GRADIENTS, None)
    for rank in at_least_one(held(halves=True)):
        assert rank.pop("being gathered") == masters | {(Category.ALL_GATHER_BUFFERS, None): 2 * WHOLE}
        assert rank == {
            "built": masters,
            "gathered": gathered,
            "reduced within the group": Counter(masters | {gradients: 2 * PART}),
            "reduced": Counter(masters | {gradients: 4 * PART}),
            "updated": Counter(moment | {gradients: 4 * PART}),
            "not reduced": Counter(moment | {gradients: 4 * PART + 2 * WHOLE}),
        }


def test_offloaded_parts_gradients_and_moments_lie_on_the_host_and_what_is_gathered_does_not(held):
    parts = BUFFERS | {(Category.PARAMETERS, Place.HOST): 4 * PART}
    for rank in at_least_one(held(halves=False, offloads=True)):
        assert rank["gathered"] == parts | {(Category.GATHERED_PARAMETERS, None): 4 * WHOLE}
        assert rank["updated"] == parts | {
            (Category.GRADIENTS, Place.HOST): 4 * PART,
            (Category.FIRST_MOMENT, Place.HOST): 4 * PART,
        }


@pytest.mark.parametrize(
    ("trained", "category"), [(True, Category.MASTER_WEIGHTS), (False, Category.PARAMETERS)], ids=["trained", "frozen"]
)
def test_the_part_of_a_parameter_that_is_not_updated_is_no_master_weight(trained: bool, category: Category) -> None:
    import torch

    from zerobench.rank.ledger.fsdp_tensors import walk_fsdp

    part = torch.ones(4)
    sharded = torch.nn.Parameter(part, requires_grad=trained)
    parameter = SimpleNamespace(sharded_param=sharded, _sharded_param_data=part)
    module: Any = torch.nn.Module()
    module._get_fsdp_state = lambda: SimpleNamespace(_fsdp_param_group=SimpleNamespace(fsdp_params=[parameter]))
    found = walk_fsdp(module, torch.optim.SGD([sharded]), are_masters=True)
    assert [(one.tensor is part, one.category) for one in found] == [(True, category)]
