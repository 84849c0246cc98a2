"""Each shortcut allocates and frees, byte by byte and in the same order, what DeepSpeed's own function does."""

from __future__ import annotations

import itertools
import math
import socket
from typing import Any

import pytest

GPU = "simgpu"
WORLDS = (2, 3, 8)
DEVICES = ("cpu", GPU)
SIZES: dict[str, list[tuple[int, ...]]] = {
    "one tensor that divides": [(48,)],
    "one tensor that does not": [(7, 5)],
    "several, odd": [(7,), (3, 5), (1,), (16,), (11, 3)],
    "several, even": [(48,), (24, 2)],
    "fewer elements than ranks": [(2,), (1,)],
}

Seen = dict[str, Any]


def open_world(world_size: int, rank: int, device: str, *, original: bool) -> tuple[Any, Any, list[Any]]:
    """A simulated world, with DeepSpeed's own functions where `original`: tensors, their counter, what was heard."""
    import torch
    from deepspeed.runtime.comm import coalesced_collectives
    from deepspeed.runtime.zero import partition_parameters, stage3

    from zerobench.rank.worlds import simulation
    from zerobench.rank.worlds.simulation.allocator import SimulatedCounter
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors
    from zerobench.rank.worlds.solo import join_alone
    from zerobench.records.progress import Rank

    wait = partition_parameters.AllGatherCoalescedHandle.wait
    if device == GPU:
        simulation.use_gpu(EndlessGpu(), lambda _flops, _is_backward: None)
    else:
        simulation.use_cpu()
    if original:
        partition_parameters.AllGatherCoalescedHandle.wait = wait
        stage3.reduce_scatter_coalesced = coalesced_collectives.reduce_scatter_coalesced
        del torch.Tensor.narrow
    heard: list[Any] = []
    this = Rank(rank, 0, world_size, socket.gethostname(), 0)
    join_alone(this, True, lambda *call: heard.append(call), device)
    tensors = SimulatedTensors(lambda _flops: None)
    return tensors, SimulatedCounter(lambda: None, tensors), heard


class EndlessGpu:
    """A GPU that has always enough memory."""

    capacity_bytes = 2**40
    devices_per_node = 8

    def allocated_bytes(self) -> int:
        return 0

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def pinned(self, _tensor: object) -> None:
        """All the same."""


def changes(counter: Any) -> list[tuple[str, int]]:
    """Births and deaths in order, by device and bytes."""
    return [(storage.device, delta) for storage, delta in counter.events]


def peak(deltas: list[tuple[str, int]]) -> int:
    return max(itertools.accumulate((delta for _, delta in deltas), initial=0))


def looks(tensors: list[Any]) -> list[Any]:
    return [
        (tuple(t.shape), t.stride(), t.storage_offset(), str(t.dtype), str(t.device), t.untyped_storage().nbytes())
        for t in tensors
    ]


def reduce_scatter(world_size: int, rank: int, device: str, original: bool) -> dict[str, Seen]:
    """Memory events of stage 3's reduction of gradients, for each list of sizes."""
    import torch
    from deepspeed.runtime.zero import stage3

    simulated, counter, heard = open_world(world_size, rank, device, original=original)
    seen: dict[str, Seen] = {}
    with simulated:
        for name, shapes in SIZES.items():
            gradients = [torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes]
            counter.see(gradients)
            counter.start_phase()
            heard.clear()
            with counter:
                parts = stage3.reduce_scatter_coalesced(gradients, torch.distributed.group.WORLD)
                during = changes(counter)
                seen[name] = {"during": during, "heard": list(heard), "parts": looks(parts)}
                share = {part.untyped_storage()._cdata for part in parts}
                seen[name]["storages"] = len(share)
                seen[name]["in_place"] = gradients[0].untyped_storage()._cdata in share
                del parts
            seen[name]["after"] = changes(counter)[len(during) :]
    return seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", WORLDS)
def test_the_reduction_of_gradients_allocates_what_deepspeeds_own_does(in_fork, world_size, device):
    for rank in (0, world_size - 1):
        torchs, ours = (in_fork(reduce_scatter, world_size, rank, device, original) for original in (True, False))
        for name in SIZES:
            assert ours[name] == torchs[name], (name, rank)
            assert peak(ours[name]["during"]) == peak(torchs[name]["during"])
        assert peak(ours["several, odd"]["during"]) > 0


def gather(world_size: int, rank: int, device: str, original: bool) -> Seen:
    """Memory events of gathering the parameters of a partitioned module, and of partitioning them again."""
    import deepspeed
    import torch

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    simulated, counter, heard = open_world(world_size, rank, device, original=original)
    with simulated:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 16), torch.nn.LayerNorm(1))
        parameters: list[Any] = list(model.parameters())
        counter.see([parameter.ds_tensor for parameter in parameters])
        counter.start_phase()
        heard.clear()
        with counter:
            handle = parameters[0].all_gather_coalesced(parameters)
            asked = changes(counter)
            handle.wait()
            waited = changes(counter)
            whole = looks([parameter.data for parameter in parameters])
            storages = len({parameter.data.untyped_storage()._cdata for parameter in parameters})
            del handle
            let_go = changes(counter)
            for parameter in parameters:
                parameter.partition(has_been_updated=False)
    return {
        "asked": asked,
        "waited": waited[len(asked) :],
        "let_go": let_go[len(waited) :],
        "partitioned": changes(counter)[len(let_go) :],
        "whole": whole,
        "storages": storages,
        "status": [str(parameter.ds_status) for parameter in parameters],
        "heard": list(heard),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", WORLDS)
def test_gathering_parameters_allocates_and_frees_what_deepspeeds_own_does(in_fork, world_size, device):
    for rank in (0, world_size - 1):
        torchs, ours = (in_fork(gather, world_size, rank, device, original) for original in (True, False))
        assert ours == torchs
        assert ours["storages"] == 6  # each parameter has memory of its own
        assert peak(ours["asked"] + ours["waited"]) > 0


def gather_fast(device: str, original: bool) -> Seen:
    """The same where the engine keeps the gathered buffer until it says so (fast sharding of leaf modules)."""
    import deepspeed
    import torch
    from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    simulated, counter, _ = open_world(3, 1, device, original=original)
    with simulated:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 16))
        parameters: list[Any] = list(model.parameters())
        with counter:
            handle = parameters[0].all_gather_coalesced(parameters)
            handle.wait(handle_dependency=False)
            del handle
            kept = changes(counter)
            AllGatherCoalescedHandle.free_buffer()
    return {"kept": kept, "freed": changes(counter)[len(kept) :]}


@pytest.mark.parametrize("device", DEVICES)
def test_a_gathered_buffer_that_the_engine_frees_itself_lives_as_long_as_deepspeeds_own(in_fork, device):
    torchs, ours = (in_fork(gather_fast, device, original) for original in (True, False))
    assert ours == torchs


def values(world_size: int, rank: int, original: bool) -> list[Any]:
    """Gathered parameters and reduced gradients of a rank alone, with real numbers in memory."""
    import deepspeed
    import torch
    from deepspeed.runtime.zero import stage3

    open_world(world_size, rank, "cpu", original=original)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    torch.manual_seed(rank)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 16), torch.nn.LayerNorm(1))
    parameters: list[Any] = list(model.parameters())
    # Another value in each place, so that one that comes from a wrong place shows.
    for number, parameter in enumerate(parameters):
        parameter.ds_tensor.copy_(torch.arange(parameter.ds_tensor.numel()) + 1000.0 * number + 1)
    parameters[0].all_gather_coalesced(parameters).wait()
    gathered = [parameter.data.tolist() for parameter in parameters]
    reduced = []
    for shapes in SIZES.values():
        gradients = [
            (torch.arange(math.prod(shape)) + 1000.0 * number + 1).view(shape) for number, shape in enumerate(shapes)
        ]
        parts = stage3.reduce_scatter_coalesced(gradients, torch.distributed.group.WORLD)
        reduced.append([part.tolist() for part in parts])
    return [gathered, reduced]


@pytest.mark.parametrize("world_size", WORLDS)
def test_they_give_the_values_that_deepspeeds_own_functions_give(in_fork, world_size):
    for rank in (0, world_size - 1):
        torchs, ours = (in_fork(values, world_size, rank, original) for original in (True, False))
        assert ours == torchs
        assert len({number for row in ours[0][0] for number in row}) > 1  # parts that differ were gathered


def copied_rows() -> list[float]:
    """Parts of three ranks with four elements: three from the second on, and two of the last rank."""
    import torch

    from zerobench.rank.worlds.simulation.shortcuts import _copy_rows

    whole = torch.empty(8)
    _copy_rows(whole, 3, torch.arange(12.0), 1, 4)
    return whole.tolist()


def test_a_parameter_that_does_not_divide_ends_with_its_last_ranks_part(in_fork):
    assert in_fork(copied_rows) == [1, 2, 3, 5, 6, 7, 9, 10]


def compare_with_other_ranks() -> list[Any]:
    from deepspeed.runtime.zero import partition_parameters, stage3

    _, _, heard = open_world(4, 0, "cpu", original=False)
    heard.clear()
    for module in (partition_parameters, stage3):
        for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
            if hasattr(module, name):
                getattr(module, name)([1, 2, 3])
                heard.append(name)
    return heard


def test_no_rank_is_asked_whether_it_has_the_same_parameters(in_fork):
    assert set(in_fork(compare_with_other_ranks)) <= {
        "assert_ints_same_as_other_ranks",
        "assert_lst_len_same_as_other_ranks",
    }


def train_by_ddp(passes: int) -> list[Any]:
    """Memory events in bytes of each forward pass, and the all-reduces after it."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from zerobench.rank.worlds.simulation.device import DEVICE

    tensors, counter, heard = open_world(2, 0, GPU, original=False)
    device, found = torch.device(DEVICE, 0), []
    with tensors, torch.autograd.set_multithreading_enabled(False), counter:
        layers = (torch.nn.Linear(300, size, bias=False, device=device) for size in (300, 300, 100))
        ddp = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.4, gradient_as_bucket_view=True)
        batch = torch.empty(1, 300, device=device)
        for _ in range(passes):
            counter.take_device_events()
            heard.clear()
            out = ddp(batch)
            grown = [delta for _, delta, _ in counter.take_device_events()]
            out.sum().backward()
            found.append((grown, [call[2] for call in heard if call[0] == "all_reduce"]))
    return found


def test_ddp_deals_its_buckets_anew_in_the_second_pass_and_holds_both_for_a_moment(in_fork):
    matrix, last = 4 * 300 * 300, 4 * 300 * 100
    (first, together), (second, apart), (third, still_apart) = in_fork(train_by_ddp, 3)
    made = [matrix + last, matrix, -2 * matrix - last]
    assert (together, apart, still_apart) == ([2 * matrix + last], made[:2], made[:2])
    assert [delta for delta in second if abs(delta) >= matrix] == made
    assert not [delta for delta in first + third if abs(delta) >= matrix]


def walk_modules() -> dict[str, Any]:
    """Parameters of modules of every kind and whether they are leaves, as DeepSpeed says it and as we do."""
    import torch
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator
    from deepspeed.runtime.zero.partition_parameters import _init_external_params
    from deepspeed.utils import set_z3_leaf_module

    from zerobench.rank.worlds.simulation import shortcuts

    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    first.again = first.weight
    model = torch.nn.Sequential(first, second, torch.nn.ReLU())
    for module in model.modules():
        _init_external_params(module)
    external: Any = second._external_params
    external[0] = first.bias
    set_z3_leaf_module(second, True)
    set_z3_leaf_module(first, False)

    def looked_at() -> Seen:
        modules = list(model.modules())
        return {
            "own": [list(map(id, coordinator.iter_params(module))) for module in modules],
            "all": [list(map(id, coordinator.iter_params(module, recurse=True))) for module in modules],
            "leaves": [coordinator.z3_leaf_module(module) for module in modules],
        }

    theirs = looked_at()
    shortcuts.ask_once()
    return {"theirs": theirs, "ours": looked_at(), "replaced": coordinator.z3_leaf_module is shortcuts._is_leaf}


def test_modules_have_the_parameters_that_deepspeed_finds_in_them_and_are_leaves_where_it_says_so(in_fork):
    seen = in_fork(walk_modules)
    assert seen["replaced"]
    assert seen["ours"] == seen["theirs"]
    assert seen["theirs"]["leaves"] == [False, False, True, False]
    assert list(map(len, seen["theirs"]["own"])) == [0, 2, 2, 0]


def _positional(ctx, first, second):
    return first, second


def _with_defaults(ctx, first, second=2, third=(3,)):
    return first, second, third


def _variadic(ctx, *rest, named=1):
    return rest, named


def bind_arguments() -> Seen:
    """Bind the same arguments with torch's own signatures and with the shortcut's."""
    import inspect

    from zerobench.rank.worlds.simulation import shortcuts

    def bound(signature: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        arguments.apply_defaults()
        return arguments.args, arguments.kwargs

    def made(default: int) -> Any:
        return lambda ctx, value=default: value

    functions = (_positional, _with_defaults, _variadic, made(1), made(2))
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}), ((0,), {}), ((0, 1), {}), ((0, 1, 2), {}), ((0, 1, 2, 3), {}), ((0, 1, 2, 3, 4), {}),
        ((0,), {"first": 5}), ((0, 1), {"third": 6}), ((0,), {"named": 7}),
    ]  # fmt: skip
    calls = list(itertools.product(functions, given))
    return {
        "theirs": [bound(inspect.signature(function), args, kwargs) for function, (args, kwargs) in calls],
        "ours": [bound(shortcuts._signature(function), args, kwargs) for function, (args, kwargs) in calls],
    }


def test_arguments_of_an_autograd_function_are_bound_as_python_binds_them(in_fork):
    seen = in_fork(bind_arguments)
    assert seen["ours"] == seen["theirs"]
    assert ((0, 1, 2, (3,)), {}) in seen["theirs"]
