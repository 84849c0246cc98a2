"""Counts tensor storages: every birth, every death, every byte, without their purpose.

On a CPU each storage is looked up in the book of torch's allocator (cpu_book.py), the source of the total; without a
book, as in the simulated world, the total comes from here. A `TorchDispatchMode` sees the result of every operation; a
storage not seen before is a birth, and a weak reference to the storage's Python object (which torch keeps as long as
the storage itself) reports its death.

Two special cases. A tensor that wraps others (a DTensor) has no memory of its own and represents those inside. And a
storage may be resized in place, without an operation, as FSDP2 does to free and allocate gathered parameters: that is a
death and a birth at the same site.

A step has some hundred thousand operations, so the work at each must be short: torch's own wrapper around a mode's
function, which keeps its compiler out, costs more than the function (`leave_uncompiled`).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from zerobench.rank.ledger.cpu_book import CpuBook


@dataclass(slots=True, eq=False)
class Storage:
    """One storage, alive or dead."""

    serial: int
    nbytes: int
    device: str
    """Device type: `cpu`, `cuda`."""
    pointer: int
    """Address for its allocator; 0 if no allocator is asked."""
    birth: Any
    """Site of its birth, from the observer; opaque here."""
    block: int = 0
    """Serial number of its block in the book of torch's CPU allocator; 0 without one."""
    alive: bool = True
    reference: Any = None
    is_adopted: bool = False
    """True if its birth was not seen."""
    is_page_locked: bool = False
    """True if it is in page-locked host memory of torch's allocator."""


_NO_OPERATIONS = ("frombuffer", "from_dlpack")
"""Functions of torch that make a tensor over foreign memory, past the dispatcher."""

_UNASKED: Any = object()
"""Marks an operation whose listener has not been looked up yet."""

Listener = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
"""Called with an operation's arguments, named arguments and result."""

Event = tuple[Storage, int]
"""A storage and its growth in bytes (negative: shrank or died), in order of time."""


class StorageCounter(TorchDispatchMode):
    """Counts storages while active; deaths are counted also while it is not.

    `observe` is called once at each birth; its result becomes `Storage.birth`.
    """

    _counts_fakes = False
    """True if tensors without memory represent ones with memory."""

    finds_page_locked = False
    """True to check whether each new host storage is page-locked, a call of CUDA's driver."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch need not wrap the function below to turn its compiler off and on again."""
        return False

    def __init__(self, observe: Callable[[], Any] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.live: dict[int, Storage] = {}
        self.totals: dict[str, int] = {}
        self.events: list[Event] = []
        self._observe = observe
        self._serial = 0
        self._book: CpuBook | None = None
        self._replaced: list[tuple[Any, str, Any]] = []
        self._listeners: dict[Any, Listener | None] = {}
        self._left_out: dict[int, Any] = {}
        self._leaves_out = False
        self._adopts = False
        self.born_before: Callable[[int], Any] = lambda _: None
        """Site of a storage from another counter that saw its birth, by key; None if neither did."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then count its result; an operation on wrappers comes again for the wrapped tensors."""
        if types and any(map(is_wrapper, types)):
            return NotImplemented
        if kwargs is None:
            kwargs = {}
        if self._book is None:
            out = func(*args, **kwargs)
        else:
            before = self._book.begin()
            try:  # an operation that raises must not stay the current one of this thread
                out = func(*args, **kwargs)
            finally:
                self._book.end(before)
        self.see(out)
        listener = self._listeners.get(func, _UNASKED)
        if listener is _UNASKED:
            listener = self._listeners[func] = self._listener(func)
        if listener is not None:
            listener(args, kwargs, out)
        return out

    def _listener(self, func: Any) -> Listener | None:  # noqa: ARG002 -- for subclasses
        """Listener for each call of an operation; None for none."""
        return None

    def __enter__(self) -> Self:
        self.watch_resizes()
        super().__enter__()  # type: ignore[no-untyped-call] # torch leaves both untyped
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.leave_resizes()

    @contextmanager
    def counting_thread(self) -> Iterator[None]:
        """Count this thread's tensors too: a mode covers one thread. Resizes are seen in all threads anyway."""
        super().__enter__()  # type: ignore[no-untyped-call] # torch leaves both untyped
        yield
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def watch_resizes(self) -> None:
        """Start to observe storages that are resized in place, and tensors that no operation makes."""
        resize = torch.UntypedStorage.resize_

        def heard(storage: torch.UntypedStorage, nbytes: int) -> Any:
            out = resize(storage, nbytes)
            old = self.live.get(storage._cdata)
            if old is not None and old.nbytes != storage.nbytes():
                self._reborn(storage, old.is_page_locked)  # its allocator stays the same
            return out

        self._replaced = [(torch.UntypedStorage, "resize_", resize)]
        torch.UntypedStorage.resize_ = heard  # type: ignore[method-assign, assignment]
        for name in _NO_OPERATIONS:
            make = getattr(torch, name)
            self._replaced.append((torch, name, make))
            setattr(torch, name, self._seeing(make))

    def leave_resizes(self) -> None:
        """Stop observing them."""
        for owner, name, function in self._replaced:
            setattr(owner, name, function)
        self._replaced = []

    def _seeing(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(make)
        def seen(*args: Any, **kwargs: Any) -> Any:
            out = make(*args, **kwargs)
            if self._replaced:  # a module imported in the meantime may keep this function
                self.see(out)
            return out

        return seen

    def see(self, value: Any) -> None:
        """Count the storages of a tensor or of the tensors in a (nested) list or tuple."""
        if isinstance(value, torch.Tensor):
            self._see_tensor(value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.see(item)

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Never count its storage, however often it is seen (pages of a mapped file)."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._left_out[key] = weakref.ref(storage, lambda _: self._left_out.pop(key, None))

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Leave out storages that are first seen while open."""
        self._leaves_out = True
        try:
            yield
        finally:
            self._leaves_out = False

    def find(self, tensor: torch.Tensor) -> Storage | None:
        """Counted storage of `tensor`, if it was seen; for a wrapper, that of the first tensor inside."""
        while is_wrapper(type(tensor)):
            tensor = _inside(tensor)[0]
        return self.live.get(tensor.untyped_storage()._cdata)

    def adopt_reachable(self) -> None:
        """Count every tensor that Python's garbage collector can reach, including gradients.

        Used when the counter is turned on again after steps without it.
        """
        self._adopts = True
        things = gc.get_objects()
        kinds = {kind for kind in set(map(type, things)) if issubclass(kind, torch.Tensor)}
        for thing in things:
            if type(thing) in kinds:  # isinstance would wake lazy proxies through __class__
                self._see_tensor(thing)
                if thing.is_leaf and thing.grad is not None:
                    self._see_tensor(thing.grad)
        self._adopts = False

    def adopt_of(self, earlier: StorageCounter, is_wanted: Callable[[Storage], bool]) -> None:
        """Count the wanted storages that `earlier` still counts, with their sites."""
        for entry in list(earlier.live.values()):
            storage = None if entry.reference is None else entry.reference()
            if storage is not None and storage._cdata not in self.live and is_wanted(entry):
                self._serial += 1
                self._keep(storage, Storage(self._serial, entry.nbytes, entry.device, entry.pointer, entry.birth))

    def keep_book(self, book: CpuBook) -> None:
        """Find the block of the book under each storage on the CPU, from now on."""
        self._book = book
        book.forget_foreign()  # reported by an earlier counter, which may be gone
        for storage in self.live.values():
            self._find_block(storage)

    def start_phase(self) -> None:
        """Forget the events so far; the storages that live stay."""
        self.events = []

    def _see_tensor(self, tensor: torch.Tensor) -> None:
        if is_wrapper(type(tensor)):
            for inner in _inside(tensor):
                self._see_tensor(inner)
            return
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        known = self.live.get(storage._cdata)
        nbytes = storage.nbytes()
        if known is None:
            if self._leaves_out:
                self.leave_out(tensor)
            elif nbytes and storage._cdata not in self._left_out:
                device = tensor.device.type
                # A meta storage has no memory, unless it represents some: DTensor computes shapes with fake tensors.
                if device != "meta" and (self._counts_fakes or storage.device.type != "meta"):
                    self._add(storage, nbytes, device, self._is_page_locked(tensor, device))
        elif known.nbytes != nbytes or known.pointer != self._pointer(storage, known.device):
            self._reborn(storage, self._is_page_locked(tensor, known.device))

    def _is_page_locked(self, tensor: torch.Tensor, device: str) -> bool:
        return self.finds_page_locked and device == "cpu" and tensor.is_pinned()

    def _add(self, storage: torch.UntypedStorage, nbytes: int, device: str, is_page_locked: bool) -> None:
        self._serial += 1
        before = self.born_before(storage._cdata)
        birth = self._observe() if before is None else before
        entry = Storage(self._serial, nbytes, device, self._pointer(storage, device), birth)
        entry.is_adopted = self._adopts and before is None
        entry.is_page_locked = is_page_locked
        self._keep(storage, entry)

    def _reborn(self, storage: torch.UntypedStorage, is_page_locked: bool) -> None:
        """Replace a resized storage: the old memory is gone, the new one has the same site."""
        old = self.live[storage._cdata]
        self._die(storage._cdata, old, None)
        self._serial += 1
        pointer = self._pointer(storage, old.device)
        entry = Storage(self._serial, storage.nbytes(), old.device, pointer, old.birth)
        entry.is_adopted, entry.is_page_locked = old.is_adopted, is_page_locked
        self._keep(storage, entry)

    def _keep(self, storage: torch.UntypedStorage, entry: Storage) -> None:
        key = storage._cdata
        entry.reference = weakref.ref(storage, partial(self._die, key, entry))
        self.live[key] = entry
        self._find_block(entry)
        self._grow(entry, entry.nbytes)

    def _pointer(self, storage: torch.UntypedStorage, device: str) -> int:
        booked = device == "cpu" and self._book is not None
        try:
            return storage.data_ptr() if booked or device == "cuda" else 0
        except RuntimeError:  # a placeholder for another tensor: it has a size but no memory
            return 0

    def _find_block(self, entry: Storage) -> None:
        if self._book is not None and entry.device == "cpu" and entry.pointer:
            entry.block = self._book.find(entry.pointer, entry.nbytes)

    def _die(self, key: int, entry: Storage, _reference: object) -> None:
        entry.alive = False
        entry.reference = None
        self.live.pop(key, None)
        self._grow(entry, -entry.nbytes)
        if entry.block and self._book is not None:
            self._book.leave(entry.pointer, entry.block)

    def _grow(self, entry: Storage, delta: int) -> None:
        if not delta:
            return
        self.totals[entry.device] = self.totals.get(entry.device, 0) + delta
        self.events.append((entry, delta))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors of a (nested) list, or of a mapping such as transformers' outputs."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)


def leave_uncompiled(function: Any, *, with_calls: bool = False) -> None:
    """Exclude a function from torch's compiler for good, `with_calls` everything that it calls too."""
    dynamo: Any = eval_frame
    actions = dynamo._FrameAction
    below = actions.SKIP if with_calls else actions.DEFAULT
    dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(actions.SKIP, below))


leave_uncompiled(StorageCounter.__torch_dispatch__, with_calls=True)


@cache
def is_wrapper(kind: type) -> bool:
    """True if tensors of this type only wrap others (torch's protocol for traceable wrapper subclasses)."""
    return hasattr(kind, "__tensor_flatten__")


def _inside(wrapper: Any) -> list[torch.Tensor]:
    names, _ = wrapper.__tensor_flatten__()
    parts = (getattr(wrapper, name) for name in names)  # a DTensor's mesh is among them
    return [part for part in parts if isinstance(part, torch.Tensor)]
