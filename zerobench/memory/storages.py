"""A count of tensor storages: every birth, every death, every byte, and nothing about what they are for.

The total of the ledger on a CPU run comes from here, so this file knows no names: it is the counter that the naming
is held against. A `TorchDispatchMode` sees the result of every operation; a storage not seen before is a birth, and a
weak reference to the storage's Python object (which torch keeps as long as the storage itself) sees its death.

Two more things are looked at. A tensor that wraps others (a DTensor) has no memory of its own and stands for those
inside. And a storage may be resized in place, without an operation, as FSDP2 frees and takes the memory of gathered
parameters: that is a death and a birth at the same place.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(slots=True, eq=False)
class Storage:
    """One storage while it lives, and after."""

    serial: int
    nbytes: int
    device: str
    """Device type: `cpu`, `cuda`."""
    pointer: int
    """Address on a CUDA device, by which the allocator knows it; 0 elsewhere."""
    birth: Any
    """What the observer said of the place of birth; opaque here."""
    alive: bool = True
    reference: Any = field(default=None, repr=False)


Event = tuple[Storage, int]
"""A storage and by how many bytes it grew (negative: shrank or died), in order of time."""


class StorageCounter(TorchDispatchMode):
    """Counts storages while active; deaths are counted also while it is not.

    `observe` is asked once at each birth and its answer kept as `Storage.birth`.
    """

    _counts_fakes = False
    """Whether tensors without memory stand for ones that have some."""

    def __init__(self, observe: Callable[[], Any] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.live: dict[int, Storage] = {}
        self.totals: dict[str, int] = {}
        self.events: list[Event] = []
        self._observe = observe
        self._serial = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then look at what it gave back; one on wrappers comes again for what they wrap."""
        if any(map(is_wrapper, types)):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        self.see(out)
        return out

    def __enter__(self) -> Self:
        self.watch_resizes()
        super().__enter__()  # type: ignore[no-untyped-call] # torch leaves both untyped
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.leave_resizes()

    @contextmanager
    def in_another_thread(self) -> Iterator[None]:
        """Count what this thread makes too: a mode is one thread's. Resizes are heard of from all threads already."""
        super().__enter__()  # type: ignore[no-untyped-call] # torch leaves both untyped
        yield
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def watch_resizes(self) -> None:
        """From now on hear of storages that are resized in place."""
        resize = self._resize_storage = torch.UntypedStorage.resize_

        def heard(storage: torch.UntypedStorage, nbytes: int) -> Any:
            out = resize(storage, nbytes)
            self._resized(storage)
            return out

        torch.UntypedStorage.resize_ = heard  # type: ignore[method-assign, assignment]

    def leave_resizes(self) -> None:
        """Hear of them no more."""
        torch.UntypedStorage.resize_ = self._resize_storage  # type: ignore[method-assign]

    def see(self, value: Any) -> None:
        """Count the storages of a tensor or of the tensors in a (nested) list or tuple."""
        if isinstance(value, torch.Tensor):
            self._see_tensor(value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.see(item)

    def find(self, tensor: torch.Tensor) -> Storage | None:
        """The counted storage under `tensor`, if it was seen; of a wrapper, that under the first tensor inside."""
        while is_wrapper(type(tensor)):
            tensor = _inside(tensor)[0]
        return self.live.get(tensor.untyped_storage()._cdata)

    def adopt_reachable(self) -> None:
        """Count every tensor that Python's garbage collector can reach, gradients included.

        Asked when the counter is turned on again after steps without it.
        """
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):  # isinstance would wake lazy proxies through __class__
                self._see_tensor(thing)
                if thing.is_leaf and thing.grad is not None:
                    self._see_tensor(thing.grad)

    def start_phase(self) -> None:
        """Forget the events so far; the storages that live stay."""
        self.events = []

    def _see_tensor(self, tensor: torch.Tensor) -> None:
        if is_wrapper(type(tensor)):
            for inner in _inside(tensor):
                self._see_tensor(inner)
            return
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        if storage.device.type == "meta" and not self._counts_fakes:  # DTensor works out shapes with fake tensors
            return
        known = self.live.get(storage._cdata)
        nbytes = storage.nbytes()
        if known is None:
            if nbytes:
                self._add(storage, nbytes, tensor.device.type)
        elif known.nbytes != nbytes:
            self._grow(known, nbytes - known.nbytes)
            known.nbytes = nbytes

    def _add(self, storage: torch.UntypedStorage, nbytes: int, device: str) -> None:
        key = storage._cdata
        self._serial += 1
        pointer = storage.data_ptr() if device == "cuda" else 0
        entry = Storage(self._serial, nbytes, device, pointer, self._observe())
        entry.reference = weakref.ref(storage, partial(self._die, key, entry))
        self.live[key] = entry
        self._grow(entry, nbytes)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """The memory that was there is gone; what is there now was born where the first was."""
        key, nbytes = storage._cdata, storage.nbytes()
        old = self.live.get(key)
        if old is None or old.nbytes == nbytes:
            return
        self._die(key, old, None)
        self._serial += 1
        pointer = storage.data_ptr() if old.device == "cuda" else 0
        new = Storage(self._serial, nbytes, old.device, pointer, old.birth)
        new.reference = weakref.ref(storage, partial(self._die, key, new))
        self.live[key] = new
        self._grow(new, nbytes)

    def _die(self, key: int, entry: Storage, _reference: object) -> None:
        entry.alive = False
        entry.reference = None
        self.live.pop(key, None)
        self._grow(entry, -entry.nbytes)

    def _grow(self, entry: Storage, delta: int) -> None:
        if not delta:
            return
        self.totals[entry.device] = self.totals.get(entry.device, 0) + delta
        self.events.append((entry, delta))


def is_wrapper(kind: type) -> bool:
    """Whether tensors of a type only stand for others (torch's protocol for traceable wrapper subclasses)."""
    return hasattr(kind, "__tensor_flatten__")


def _inside(wrapper: Any) -> list[torch.Tensor]:
    names, _ = wrapper.__tensor_flatten__()
    parts = (getattr(wrapper, name) for name in names)  # a DTensor's mesh is among them
    return [part for part in parts if isinstance(part, torch.Tensor)]
