"""torch.distributed without other ranks: a store that answers for them, instant groups on the host.

ProcessGroupNCCL reads the communicator's id, which rank 0 would write, from its store. The id is meaningless to a
library that communicates with nobody, so any value of the right length will do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

_ID_BYTES = 128
"""sizeof(ncclUniqueId) (nccl.h), the only value that is read without having been written."""

_Store: Any = dist.Store  # type: ignore[attr-defined] # public, and not re-exported by its stubs


class AbsentPeers(_Store):  # type: ignore[misc] # torch's stubs leave its Python base untyped
    """A key-value store (c10d/Store.hpp) in which every key has been written."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes:
        """Value that this rank wrote, or zeros of a communicator id's length."""
        return self._values.get(key, bytes(_ID_BYTES))

    def add(self, key: str, amount: int) -> int:
        value = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(value).encode()
        return value

    def compare_set(self, key: str, _expected: bytes, desired: bytes) -> bytes:
        # No rank competes
        return bytes(self._values.setdefault(key, desired))

    def wait(self, _keys: list[str], _timeout: timedelta | None = None) -> None:
        """No rank is waited for."""

    def check(self, keys: list[str]) -> bool:
        """Return whether this rank wrote them all."""
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Number of keys written."""
        return len(self._values)

    def set_timeout(self, _timeout: timedelta) -> None:
        """Nothing takes time."""


class _IsFake(type):
    """torch checks whether a group is a gloo group."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _fake())


class InstantGloo(metaclass=_IsFake):
    """Creates torch's fake backend under gloo's name."""

    def __new__(cls, _store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
        """Create a group that completes immediately: gathering repeats this rank's part, reducing returns it."""
        fake = _fake()
        return fake._create_internal(rank, size, fake.Options())


def instant_cpu_groups() -> None:
    """Replace gloo groups, so that none waits for its peers' sockets."""
    home: Any = dist.distributed_c10d
    fake = _fake()
    fake._set_sequence_number_for_group = lambda _group: None
    fake.monitored_barrier = lambda _group, *_, **__: None
    for module in (dist, home):
        vars(module)["ProcessGroupGloo"] = InstantGloo


def _fake() -> Any:
    from torch._C._distributed_c10d import FakeProcessGroup

    return FakeProcessGroup
