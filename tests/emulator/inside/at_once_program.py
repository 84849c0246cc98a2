"""What gathering parameters and reducing gradients does to torch's allocator: run by test_at_once.py, on the emulator.

As rank 5 of 8, first by DeepSpeed's own functions and then by those that copy at once.
"""

import json
import os
from typing import Any

import torch
import torch.distributed as dist

from zerobench.emulator.inside.absent_peers import AbsentPeers
from zerobench.emulator.inside.values import open_values

WORLD_SIZE, RANK = 8, 5
WIDTH = 500
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "one tensor that divides": [(48, 1000)],
    "one tensor that does not": [(7, 5)],
    "several, odd": [(7,), (3, 5), (1,), (1601, 333)],
    "fewer elements than ranks": [(2,), (1,)],
}


def join() -> AbsentPeers:
    store = AbsentPeers()
    dist.init_process_group("cuda:nccl", store=store, rank=RANK, world_size=WORLD_SIZE)
    import deepspeed

    deepspeed.init_distributed(dist_backend="nccl", auto_mpi_discovery=False)
    return store


def history() -> list[tuple[Any, ...]]:
    """What the allocator did, in order; addresses by when they came first, and by which stream."""
    [trace] = torch.cuda.memory._snapshot()["device_traces"]
    streams = {entry["stream"]: index for index, entry in reversed(list(enumerate(trace)))}
    addresses = {entry["addr"]: index for index, entry in reversed(list(enumerate(trace)))}
    return [(one["action"], one["size"], addresses[one["addr"]], streams[one["stream"]]) for one in trace]


def gathered(parameters: list[Any], side: torch.cuda.Stream) -> list[Any]:
    """Gather on a stream of its own, as the engine does, use, partition again, and take as much once more."""
    for handle_dependency in (True, False):
        with torch.cuda.stream(side):
            handle = parameters[0].all_gather_coalesced(parameters)
        handle.wait(handle_dependency=handle_dependency)
        del handle
        for parameter in parameters:
            parameter.partition(has_been_updated=False)
        with torch.cuda.stream(side):
            torch.empty(WIDTH * WIDTH, dtype=torch.bfloat16, device="cuda")
        from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle

        AllGatherCoalescedHandle.free_buffer()
        torch.cuda.synchronize()
    return history()


def reduced() -> list[Any]:
    from deepspeed.runtime.zero import stage3

    for shapes in SHAPES.values():
        gradients = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]
        stage3.reduce_scatter_coalesced(gradients, dist.group.WORLD)
        torch.cuda.synchronize()
    return history()


def seen(parameters: list[Any], side: torch.cuda.Stream) -> dict[str, list[Any]]:
    found = {}
    for name, work in (("gathered", lambda: gathered(parameters, side)), ("reduced", reduced)):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(enabled="all", context=None, clear_history=True)
        found[name] = work()
    return found


def main() -> None:
    open_values()
    os.environ |= {"RANK": str(RANK), "WORLD_SIZE": str(WORLD_SIZE), "LOCAL_RANK": "0"}
    store = join()
    import deepspeed

    from zerobench.rank.worlds.simulation import shortcuts

    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 333), torch.nn.LayerNorm(7))
    parameters = list(model.parameters())
    side = torch.cuda.Stream()
    seen(parameters, side)  # lets NCCL and the matrix library take what they keep
    own = seen(parameters, side)
    shortcuts.copy_at_once()
    print(json.dumps([own, seen(parameters, side)]))
    assert store is not None


main()
