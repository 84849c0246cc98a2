"""Tensors without bytes: torch's FakeTensorMode, made fast enough for an engine's whole training step.

A training step of a large model under ZeRO-3 is some hundred thousand operations, and in FakeTensorMode each costs
Python. Three things are done about it, none of which changes a result:

- the device of a tensor, which C++ asks for more often than anything else, is answered before anything else;
- the shape, strides, type and device of an operation's result are remembered for equal arguments, in place of torch's
  own cache of the same, whose keys cost more than many results;
- the observer (the count of storages) is called from here, so that operations pass one Python mode and not two.

Values do not exist. What code may learn by asking for one is in answers.py; values of scalars made on the host from
plain numbers (Adam's step counters, loss scales) are kept by FakeTensorMode itself and are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils.weak import WeakIdKeyDictionary

from zerobench.rank.ledger.costs import VALUE, Cost, cost_of
from zerobench.rank.ledger.storages import is_wrapper
from zerobench.rank.worlds.simulation.answers import answer
from zerobench.rank.worlds.simulation.collectives import message
from zerobench.rank.worlds.simulation.device import DEVICE
from zerobench.rank.worlds.simulation.memo import Make, NoKeyError, Operation, key_of, recipe

_DATA: Any = torch.Tensor.data
_EXCHANGED: Any = WeakIdKeyDictionary()
"""DTensors of modules that others took the place of, to those (`_apply`)."""
_DEVICE = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default

Observer = Callable[[Any], None]
"""Called with each operation's result."""


class _Known(NamedTuple):
    """An operation on arguments that look alike."""

    make: Make
    cost: Cost | None
    flops: int | None
    """None where it is none of those that are counted."""


class SimulatedTensors(FakeTensorMode):
    """A FakeTensorMode whose tensors stand for those of a training run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch shall wrap the function below: as with StorageCounter, whose operations these are as well."""
        return False

    def __init__(self, count_flops: Callable[[int], None]) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.observer: Observer | None = None
        self.listener: Callable[[str, int, int, int | None], Callable[[], None] | None] | None = None
        """Hears of collectives that reach no process group (collectives.py)."""
        self.charge: Callable[[Cost], None] | None = None
        """Hears what each operation costs."""
        self.wrote: Callable[[Any], None] | None = None
        """Hears of each result that an operation has written."""
        self._under_way: list[Callable[[], None]] = []
        self._count_flops = count_flops
        self._operations: dict[Any, Operation] = {}
        self._memo: dict[tuple[Any, ...], _Known] = {}
        self.workspaces: dict[str, FakeTensor] = {}
        self._workspace: tuple[torch.device, int] | None = None
        self._working = False
        self.cache_enabled = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Find out what the operation would give, and tell the observer."""
        if func is _DEVICE:
            return torch.device("meta") if self.in_kernel_invocation else args[0].fake_device
        if func is _ITEM and args[0].constant is None:
            if args[0].fake_device.type == DEVICE:
                self._charge(VALUE)
            return _as_type(answer(), args[0].dtype)
        if any(map(is_wrapper, types)):  # it comes again for what is inside
            return NotImplemented
        if self._working:  # within torch's own Python for another operation: a kernel's affair
            return self.dispatch(func, types, args, kwargs or {})
        operation = self._operations.get(func)
        if operation is None:
            operation = self._operations[func] = Operation(func)
        out, flops = self._result(operation, func, types, args, kwargs or {})
        if self.observer is not None:
            self.observer(out)
        if self.wrote is not None and not operation.runs_nothing:
            self.wrote(out)
        if flops is not None:
            self._count_flops(flops)
            self._note_product(out)
        if operation.is_collective and self.listener is not None:
            waited = self.listener(*message(func, args, out))
            self._under_way += [] if waited is None else [waited]
        elif func is _WAIT:
            while self._under_way:
                self._under_way.pop(0)()
        return out

    def _charge(self, cost: Cost | None) -> None:
        if cost is not None and self.charge is not None:
            self.charge(cost)

    def keep_workspaces(self, device: torch.device, nbytes: int) -> None:
        """Let the first matrix product on each of torch's threads take a workspace of `nbytes`, as cuBLAS does.

        The forward and the backward pass run on different threads (aten/src/ATen/cuda/CublasHandlePool.cpp).
        """
        self._workspace = (device, nbytes)

    def _note_product(self, out: Any) -> None:
        thread = "forward" if torch._C._current_autograd_node() is None else "backward"
        if self._workspace is None or thread in self.workspaces or self.observer is None:
            return
        device, nbytes = self._workspace
        if getattr(out, "fake_device", None) == device:
            self.workspaces[thread] = FakeTensor(self, torch.empty(nbytes, dtype=torch.uint8, device="meta"), device)
            self.observer(self.workspaces[thread])

    def _work_out(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By torch; where it decomposes the operation in Python, what that allocates is not the operation's."""
        self._working = True
        try:
            return self.dispatch(func, types, args, kwargs)
        finally:
            self._working = False

    def _view(self, func: Any, args: tuple[Any, ...]) -> FakeTensor:
        """By torch's own view of what has no bytes, in a tenth of the time: a flat buffer has one a parameter."""
        with in_kernel_invocation_manager(self):
            seen = func(*args)
        return FakeTensor(self, seen, args[0].fake_device)

    def _result(
        self, operation: Operation, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, int | None]:
        """By the memory of an equal call where there is one; with its FLOPs, where they are counted."""
        tensors: list[FakeTensor] = []
        key: tuple[Any, ...] | None
        try:
            key = key_of(operation, args, kwargs, tensors)
            known = self._memo.get(key)
        except (NoKeyError, TypeError):  # a value that counts, or an argument that has no hash
            key = known = None
        if known is not None:
            self._charge(known.cost)
            return known.make(tensors), known.flops
        out = (
            self._view(func, args)
            if key is not None and operation.is_seen
            else self._work_out(func, types, args, kwargs)
        )
        cost = None if self.charge is None else cost_of(func, args, kwargs, out)
        self._charge(cost)
        flops = None if operation.formula is None else operation.formula(*args, **kwargs, out_val=out)
        if key is not None and operation.is_remembered and (made := recipe(out, tensors)) is not None:
            self._memo[key] = _Known(made, cost, flops)
        return out, flops


def install() -> None:
    """Let simulated tensors be assigned to, as modules and engines do, for the rest of the process."""
    FakeTensor.data = property(_DATA.__get__, _set_data)  # type: ignore[assignment]
    torch.nn.Module._apply = _apply  # type: ignore[method-assign]


def take_as_lists() -> None:
    """Let optimizers and clipping work on whole lists of simulated tensors, as they do on those of a GPU.

    They ask for the exact type. Adam's loop over single tensors holds two temporaries at once where the lists' one.
    """
    for module in (optimizer, _foreach_utils):
        if FakeTensor not in module._foreach_supported_types:
            module._foreach_supported_types.append(FakeTensor)


def _set_data(self: Any, value: torch.Tensor) -> None:
    """`tensor.data = value` leaves the device that a fake tensor says it is on as it was; a real one takes it over."""
    _DATA.__set__(self, value)
    self.fake_device = value.device


def _apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
    """torch.nn.Module._apply, which exchanges tensor subclasses as wholes and fails where something refers to them.

    Assigning to `.data` is what it does for ordinary tensors. A DTensor is exchanged for another parameter: that would
    leave its inside. Torch's exchange leaves the object the same, so whoever else holds it (a tied head) is given the
    other one as well.
    """
    if recurse:
        for child in self.children():
            child._apply(fn)
    with torch.no_grad():
        for name, parameter in [(name, p) for name, p in self._parameters.items() if p is not None]:
            now: torch.nn.Parameter = _EXCHANGED.get(parameter, parameter)
            applied = fn(now)
            if is_wrapper(type(now)):
                if applied is not now:
                    given = torch.nn.Parameter(applied, requires_grad=now.requires_grad)
                    _EXCHANGED[now] = now = given
                self._parameters[name] = now
            elif applied is not now:
                now.data = applied
    self._buffers.update({name: fn(b) for name, b in self._buffers.items() if b is not None})
    return self


def _as_type(value: float, dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return bool(value)
    return value if dtype.is_floating_point else int(value)
