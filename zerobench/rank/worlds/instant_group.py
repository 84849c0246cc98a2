"""A process group of N ranks of which only one is there: every collective completes at once and is written down.

torch's own "fake" backend leaves results as they were, so a gathered parameter would be whatever its memory held. Here
the absent ranks are taken to hold what this one holds: gathering repeats its part, reducing leaves its own values.
Losses mean nothing in such a world, but all numbers stay finite, and no path is taken that real training would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

BACKEND = "instant"

Listener = Callable[[str, int, int, int | None], Callable[[], None] | None]
"""Hears of each collective: its kind, the size of its group, the bytes of its whole message, the group's nodes. It may
give what is to be called where somebody waits for it."""


def join(rank: int, world_size: int, listener: Listener, *devices: str, ranks_per_node: int = 1) -> None:
    """Make the default group: this process is `rank` of `world_size`, on tensors of `devices`."""
    InstantGroup.listener, InstantGroup.ranks_per_node, InstantGroup.connected = listener, ranks_per_node, []
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, devices=list(devices))
    dist.init_process_group(BACKEND, store=FakeStore(), rank=rank, world_size=world_size)


def _create(_store: Any, rank: int, world_size: int, _timeout: Any) -> InstantGroup:
    group = InstantGroup(rank, world_size)
    if not InstantGroup.connected:  # the one of all ranks, who meet by a collective
        group.connect()
    return group


class _EndedCollective(dist.Work):
    """A collective that is over, with its tensors for those who ask for them by a future (DDP's reducer)."""

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
        """NCCL's work keeps them until somebody waits for it, since another stream reads them
        (c10d/ProcessGroupNCCL.cpp, `stashed_for_allocator_safety_`)."""

    def get_future(self) -> Any:
        """DDP's reducer waits for those of its buckets when backward ends, and tells no `Work` (reducer.cpp)."""
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
        """Who sent what came from anywhere: the last rank, which of several is one that works."""
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


def _of_several(of_one: Callable[..., Any]) -> Callable[..., _EndedCollective]:
    """The call of a group that does for several tensors what `of_one` does for one."""

    def of_each(group: Any, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        parts = [of_one(group, output, given) for output, given in zip(outputs, inputs, strict=True)]
        return _EndedCollective(outputs, inputs, [waited for part in parts for waited in part.waited])

    return of_each


# torch's stubs overload these methods with signatures that no release calls alone.
_ProcessGroup: Any = dist.ProcessGroup


class InstantGroup(_ProcessGroup):  # type: ignore[misc] # see above
    """Takes the calls that torch.distributed makes of a group (c10d/ProcessGroup.hpp), in the names of 2.11 to 2.13."""

    listener: ClassVar[Any]
    """A Listener, of all groups of the process."""
    ranks_per_node: ClassVar[int]
    connected: ClassVar[list[int]] = []
    """The sizes of the groups that have communicated: NCCL makes a communicator of each, with buffers of its own."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self._rank = rank
        self._world_size = world_size
        self._is_connected = False

    def connect(self) -> None:
        """The first collective makes the communicator."""
        if not self._is_connected:
            self._is_connected = True
            self.connected.append(self._world_size)

    def size(self) -> int:
        """Ranks of the group."""
        return self._world_size

    def rank(self) -> int:
        """The one rank that is there."""
        return self._rank

    @property
    def group_name(self) -> str:
        """By which meshes of devices and functional collectives find the group again."""
        name: str = dist.distributed_c10d._world.pg_names[self]
        return name

    def num_nodes(self) -> int | None:
        """Nodes that its ranks lie on; None until torch has said which they are."""
        ranks = dist.distributed_c10d._world.pg_group_ranks.get(self)
        return None if ranks is None else len({rank // self.ranks_per_node for rank in ranks})

    def getBackendName(self) -> str:  # noqa: N802 -- torch's name
        """As registered."""
        return BACKEND

    def _heard(
        self, kind: str, message_bytes: int, results: list[torch.Tensor], inputs: Sequence[torch.Tensor] = ()
    ) -> _EndedCollective:
        self.connect()
        waited = type(self).listener(kind, self._world_size, message_bytes, self.num_nodes())
        return _EndedCollective(results, inputs, [] if waited is None else [waited])

    def allreduce(self, tensors: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """Each keeps its own."""
        return self._heard("all_reduce", _nbytes(tensors), tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """The root keeps its own."""
        return self._heard("reduce", _nbytes(tensors), tensors)

    def broadcast(self, tensors: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """All have what the root has."""
        return self._heard("broadcast", _nbytes(tensors), tensors)

    def barrier(self, *_: Any, **__: Any) -> Any:
        """Nobody to wait for."""
        return self._heard("barrier", 0, [])

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """Every rank's part is this rank's."""
        _repeat(outputs, inputs)
        return self._heard("all_gather", self._world_size * _nbytes(inputs), _flat(outputs), inputs)

    def _allgather_base(self, output: torch.Tensor, shard: torch.Tensor, *_: Any, **__: Any) -> Any:
        """The same into one tensor of N parts."""
        if not _is_simulated(shard):
            # Its own part may be the very tensor that is gathered.
            parts = output.view(self._world_size, -1)
            parts[: self._rank].copy_(shard.reshape(1, -1))
            parts[self._rank + 1 :].copy_(shard.reshape(1, -1))
            if parts[self._rank].data_ptr() != shard.data_ptr():
                parts[self._rank].copy_(shard.reshape(-1))
        return self._heard("all_gather", output.nbytes, [output], [shard])

    all_gather_single = _allgather_base

    allgather_into_tensor_coalesced = all_gather_single_coalesced = _of_several(_allgather_base)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *_: Any, **__: Any) -> Any:
        """The rank gets its own part."""
        self._take_own(outputs, inputs)
        return self._heard("reduce_scatter", self._world_size * _nbytes(outputs), outputs, _flat(inputs))

    def _take_own(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]]) -> None:
        for output, parts in zip(outputs, inputs, strict=True):
            if not _is_simulated(output):
                output.copy_(parts[self._rank])

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, *_: Any, **__: Any) -> Any:
        """The same from one tensor of N parts; gloo reduces a copy of the whole (c10d/ProcessGroupGloo.cpp)."""
        scratch = whole.clone() if whole.device.type == "cpu" else None
        if not _is_simulated(output):
            part = whole.reshape(self._world_size, -1)[self._rank]
            if part.data_ptr() != output.data_ptr():
                output.view(-1).copy_(part)
        del scratch
        return self._heard("reduce_scatter", whole.nbytes, [output], [whole])

    reduce_scatter_single = _reduce_scatter_base

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced = _of_several(_reduce_scatter_base)

    def alltoall_base(self, output: torch.Tensor, sent: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Every rank sends what this one would."""
        if not _is_simulated(sent) and output.numel() == sent.numel():
            output.copy_(sent.view_as(output))
        return self._heard("all_to_all", sent.nbytes, [output], [sent])

    all_to_all_single = alltoall_base

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        """As all-gather, where this rank is the root; elsewhere `outputs` is empty."""
        if outputs:
            _repeat(outputs, inputs)
        return self._heard("gather", self._world_size * _nbytes(inputs), _flat(outputs))

    def send(self, tensors: list[torch.Tensor], _to: int, _tag: int) -> Any:
        """Nothing to move; strategies/server_link.py tells the listeners, as it does among real ranks."""
        return _EndedCollective(tensors)

    def recv(self, tensors: list[torch.Tensor], _from: int, _tag: int) -> Any:
        """Nobody sends: the tensor keeps what it holds."""
        return _EndedCollective(tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], _tag: int) -> Any:
        """The same from anyone."""
        return _EndedCollective(tensors)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *_: Any, **__: Any) -> Any:
        """The rank gets its own part, where it is the root; elsewhere `inputs` is empty."""
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
    """Whether there is nothing to move."""
    return type(tensor) is not torch.Tensor and hasattr(tensor, "fake_mode")
