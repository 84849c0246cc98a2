"""A process group of N ranks of which only one exists: every collective completes at once and is recorded.

torch's own "fake" backend does not write results, so a gathered parameter would be uninitialised memory. Here absent
ranks are assumed to hold the same values as this one: gathering repeats its part, reducing keeps its values. Losses are
meaningless in such a world, but all numbers stay finite, so that the engine takes the same paths as in real training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

BACKEND = "instant"

Listener = Callable[[str, int, int, int | None], Callable[[], None] | None]
"""Called with each collective: its kind, the size of its group, the bytes of its whole message, the group's nodes. May
return a function to call when the collective is awaited."""


def join(rank: int, world_size: int, listener: Listener, *devices: str, ranks_per_node: int = 1) -> None:
    """Make the default group, with this process as `rank` of `world_size`, for tensors on `devices`."""
    InstantGroup.listener, InstantGroup.ranks_per_node, InstantGroup.connected = listener, ranks_per_node, []
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, devices=list(devices))
    dist.init_process_group(BACKEND, store=FakeStore(), rank=rank, world_size=world_size)


def _create(_store: Any, rank: int, world_size: int, _timeout: Any) -> InstantGroup:
    group = InstantGroup(rank, world_size)
    if not InstantGroup.connected:  # the default group, which begins with a collective
        group.connect()
    return group


class _EndedCollective(dist.Work):
    """A finished collective, with its results for callers that want a future (DDP's reducer)."""

    def __init__(
        self,
        results: list[torch.Tensor],
        inputs: Sequence[torch.Tensor] = (),
        waited: Sequence[Callable[[], None]] = (),
    ) -> None:
        super().__init__()
        self._results = results
        self.waited = list(waited)
        self._inputs = [tensor for tensor in inputs if tensor.device.type != "cpu"]
        """NCCL's work keeps its inputs until it is awaited, since another stream reads them
        (c10d/ProcessGroupNCCL.cpp, `stashed_for_allocator_safety_`)."""

    def get_future(self) -> Any:
        """Return a future; DDP's reducer waits for its buckets' futures at the end of backward (reducer.cpp)."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._results)
        if self.waited:
            waiting, self.waited = self.waited, []
            torch.autograd.Variable._execution_engine.queue_callback(lambda: _tell(waiting))
        return future

    def wait(self, timeout: Any = None) -> bool:
        self.synchronize()
        return True

    def _source_rank(self) -> int:
        """Sender of a receive from any rank: the last rank, which is a worker."""
        return dist.get_world_size() - 1

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._inputs.clear()
        _tell(self.waited)
        self.waited.clear()


def _tell(waited: Sequence[Callable[[], None]]) -> None:
    for callback in waited:
        callback()


def _coalesced(collective: Callable[..., Any]) -> Callable[..., _EndedCollective]:
    """Version of `collective` for several tensors."""

    def run(group: Any, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        parts = [collective(group, output, tensor) for output, tensor in zip(outputs, inputs, strict=True)]
        return _EndedCollective(outputs, inputs, [waited for part in parts for waited in part.waited])

    return run


# torch's stubs overload these methods with signatures that cover no single release.
_ProcessGroup: Any = dist.ProcessGroup


class InstantGroup(_ProcessGroup):  # type: ignore[misc] # see above
    """Implements the calls of torch.distributed to a group (c10d/ProcessGroup.hpp), as named in 2.11 to 2.13."""

    listener: ClassVar[Any]
    """The Listener of all groups of the process."""
    ranks_per_node: ClassVar[int]
    connected: ClassVar[list[int]] = []
    """Sizes of groups that have communicated: NCCL creates a communicator with buffers for each."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self._rank = rank
        self._world_size = world_size
        self._is_connected = False

    def connect(self) -> None:
        """Create the communicator, at the first collective."""
        if not self._is_connected:
            self._is_connected = True
            self.connected.append(self._world_size)

    def size(self) -> int:
        """Return the number of ranks of the group."""
        return self._world_size

    def rank(self) -> int:
        """Return the one rank that exists."""
        return self._rank

    @property
    def group_name(self) -> str:
        """Name by which device meshes and functional collectives find the group."""
        name: str = dist.distributed_c10d._world.pg_names[self]
        return name

    def num_nodes(self) -> int | None:
        """Number of nodes of its ranks; None until torch has registered them."""
        ranks = dist.distributed_c10d._world.pg_group_ranks.get(self)
        return None if ranks is None else len({rank // self.ranks_per_node for rank in ranks})

    def getBackendName(self) -> str:  # noqa: N802 -- torch's name
        """Name of the backend as registered."""
        return BACKEND

    def _heard(
        self, kind: str, message_bytes: int, results: list[torch.Tensor], inputs: Sequence[torch.Tensor] = ()
    ) -> _EndedCollective:
        self.connect()
        waited = type(self).listener(kind, self._world_size, message_bytes, self.num_nodes())
        return _EndedCollective(results, inputs, [] if waited is None else [waited])

    def allreduce(self, tensors: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """Keep this rank's values."""
        return self._heard("all_reduce", _nbytes(tensors), tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """Keep the root's values."""
        return self._heard("reduce", _nbytes(tensors), tensors)

    def broadcast(self, tensors: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """Keep this rank's values, which are also the root's."""
        return self._heard("broadcast", _nbytes(tensors), tensors)

    def barrier(self, *_: Any, **__: Any) -> Any:
        """Do not wait."""
        return self._heard("barrier", 0, [])

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """Copy this rank's part for every rank."""
        _repeat(outputs, inputs)
        return self._heard("all_gather", self._world_size * _nbytes(inputs), _flat(outputs), inputs)

    def _allgather_base(self, output: torch.Tensor, shard: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Copy this rank's part N times into one tensor."""
        if not _is_simulated(shard):
            # The input may be this rank's part of the output.
            parts = output.view(self._world_size, -1)
            parts[: self._rank].copy_(shard.reshape(1, -1))
            parts[self._rank + 1 :].copy_(shard.reshape(1, -1))
            if parts[self._rank].data_ptr() != shard.data_ptr():
                parts[self._rank].copy_(shard.reshape(-1))
        return self._heard("all_gather", output.nbytes, [output], [shard])

    all_gather_single = _allgather_base

    allgather_into_tensor_coalesced = all_gather_single_coalesced = _coalesced(_allgather_base)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *_: Any, **__: Any) -> Any:
        """Take this rank's part."""
        self._take_own(outputs, inputs)
        return self._heard("reduce_scatter", self._world_size * _nbytes(outputs), outputs, _flat(inputs))

    def _take_own(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]]) -> None:
        for output, parts in zip(outputs, inputs, strict=True):
            if not _is_simulated(output):
                output.copy_(parts[self._rank])

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Take this rank's part of one tensor; gloo reduces a copy of the whole tensor (c10d/ProcessGroupGloo.cpp)."""
        scratch = whole.clone() if whole.device.type == "cpu" else None
        if not _is_simulated(output):
            part = whole.reshape(self._world_size, -1)[self._rank]
            if part.data_ptr() != output.data_ptr():
                output.view(-1).copy_(part)
        del scratch
        return self._heard("reduce_scatter", whole.nbytes, [output], [whole])

    reduce_scatter_single = _reduce_scatter_base

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced = _coalesced(_reduce_scatter_base)

    def alltoall_base(self, output: torch.Tensor, sent: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Receive the tensor that this rank sends."""
        if not _is_simulated(sent) and output.numel() == sent.numel():
            output.copy_(sent.view_as(output))
        return self._heard("all_to_all", sent.nbytes, [output], [sent])

    all_to_all_single = alltoall_base

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """Copy this rank's part for every rank if this rank is the root; otherwise `outputs` is empty."""
        if outputs:
            _repeat(outputs, inputs)
        return self._heard("gather", self._world_size * _nbytes(inputs), _flat(outputs))

    def send(self, tensors: list[torch.Tensor], _to: int, _tag: int) -> Any:
        """Do nothing; strategies/parameter_server.py reports to listeners, as among real ranks."""
        return _EndedCollective(tensors)

    def recv(self, tensors: list[torch.Tensor], _from: int, _tag: int) -> Any:
        """Keep the tensor as it is."""
        return _EndedCollective(tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], _tag: int) -> Any:
        """Keep the tensor as it is."""
        return _EndedCollective(tensors)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *_: Any, **__: Any) -> Any:
        """Take this rank's part if this rank is the root; otherwise `inputs` is empty."""
        if inputs:
            self._take_own(outputs, inputs)
        return self._heard("scatter", self._world_size * _nbytes(outputs), outputs)


def _repeat(outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> None:
    for parts, part_of_rank in zip(outputs, inputs, strict=True):
        if not _is_simulated(part_of_rank):
            for part in parts:
                part.copy_(part_of_rank)


def _flat(lists: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [tensor for tensors in lists for tensor in tensors]


def _nbytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _is_simulated(tensor: torch.Tensor) -> bool:
    """True for a simulated tensor, which has no values to move."""
    return type(tensor) is not torch.Tensor and hasattr(tensor, "fake_mode")
