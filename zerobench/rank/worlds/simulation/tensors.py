"""Tensors without bytes: torch's FakeTensorMode, made fast enough for an engine's whole training step.

A training step of a large model under ZeRO-3 has some hundred thousand operations, and in FakeTensorMode each runs
Python code. Three optimisations, none of which changes a result:

- the device of a tensor, the most frequent query of C++, is answered first;
- shape, strides, type and device of results are cached for equal arguments, instead of in torch's own cache, whose keys
  cost more than many results;
- the observer (the count of storages) is called from here, so that operations pass one Python mode instead of two.

Tensors have no values. An invented value may change the path of the engine: a made-up overflow skips the optimizer step
that allocates Adam's moments. So `_ANSWERS` lists each place that asks for a value, with the answer of an ordinary
training step and the reason; any other place is an error that names it. Values of scalars made on the host from plain
numbers (Adam's step counters, loss scales) are kept by FakeTensorMode itself and are correct.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils.weak import WeakIdKeyDictionary

from zerobench.rank.ledger.costs import VALUE, Cost, cost_of
from zerobench.rank.ledger.storages import is_wrapper
from zerobench.rank.worlds.simulation.device import DEVICE
from zerobench.rank.worlds.simulation.memo import Make, NoKeyError, Operation, key_of, message, recipe


class UnknownValueError(RuntimeError):
    """Code asked for the value of a tensor that has none, at a place with no known answer."""


# Package of the asking code (its innermost frame in one of them decides), function, answer. The first match decides.
_ANSWERS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    # Gradients are finite: no step is skipped, no loss scale changes.
    ("deepspeed/runtime/", re.compile(r".*(overflow|inf_or_nan|invalid).*"), 0.0),
    # Their norm is finite, so clipping multiplies by one; the step takes the same path for any finite norm.
    ("deepspeed/runtime/", re.compile(r".*(norm|clip).*"), 1.0),
    ("deepspeed/runtime/bf16_optimizer.py", re.compile(r"step"), 1.0),  # where releases before 0.19.8 assert it
    # No update between a server and its workers is missed.
    ("zerobench/rank/strategies/parameter_server.py", re.compile(r"hear"), 0.0),
    # All stages of a pipeline know their shapes (strategies/pipeline.py), so none are inferred.
    ("torch/distributed/pipelining/schedules.py", re.compile(r"_warmup_p2p"), 1.0),
    # Batches hold one sequence a row, without padding.
    ("transformers/masking_utils.py", re.compile(r"find_packed_sequence_indices"), 1.0),
)


def answer() -> float:
    """Return the value for the code that asks now.

    Raises:
        UnknownValueError: no answer is listed for this place.

    """
    frame: FrameType | None = sys._getframe(2)
    where: list[str] = []
    while frame is not None:
        filename, function = frame.f_code.co_filename, frame.f_code.co_name
        for package, pattern, value in _ANSWERS:
            if f"/{package}" in filename and pattern.fullmatch(function):
                return value
        where.append(f"{filename}:{frame.f_lineno} {function}")
        frame = frame.f_back
    raise UnknownValueError("a simulated tensor has no value; asked by " + " < ".join(where[:12]))


_DATA: Any = torch.Tensor.data
_EXCHANGED: Any = WeakIdKeyDictionary()
"""Maps replaced DTensors of modules to their replacements (`_apply`)."""
_DEVICE = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default

Observer = Callable[[Any], None]
"""Called with each operation's result."""


class _Known(NamedTuple):
    """Cached result of an operation on arguments of equal layout."""

    make: Make
    cost: Cost | None
    flops: int | None
    """None for an operation that is not counted."""


class SimulatedTensors(FakeTensorMode):
    """A FakeTensorMode whose tensors represent those of a training run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, as in StorageCounter, which counts the same operations."""
        return False

    def __init__(self, count_flops: Callable[[int], None]) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.observer: Observer | None = None
        self.listener: Callable[[str, int, int, int | None], Callable[[], None] | None] | None = None
        """Called with collectives that reach no process group (memo.py)."""
        self.charge: Callable[[Cost], None] | None = None
        """Called with the cost of each operation."""
        self.wrote: Callable[[Any], None] | None = None
        """Called with each result that an operation has written."""
        self._under_way: list[Callable[[], None]] = []
        self._count_flops = count_flops
        self._operations: dict[Any, Operation] = {}
        self._memo: dict[tuple[Any, ...], _Known] = {}
        self.workspaces: dict[str, FakeTensor] = {}
        self._workspace: tuple[torch.device, int] | None = None
        self._working = False
        self.cache_enabled = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute the layout of the operation's result, and call the observer."""
        if func is _DEVICE:
            return torch.device("meta") if self.in_kernel_invocation else args[0].fake_device
        if func is _ITEM and args[0].constant is None:
            if args[0].fake_device.type == DEVICE:
                self._charge(VALUE)
            return _typed_number(answer(), args[0].dtype)
        if any(map(is_wrapper, types)):  # the operation comes again for the wrapped tensors
            return NotImplemented
        if self._working:  # part of another operation, which torch implements in Python
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
        """Allocate a workspace of `nbytes` at the first matrix product on each of torch's threads, as cuBLAS does.

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
        """Compute the result with torch; allocations of its Python decompositions do not count."""
        self._working = True
        try:
            return self.dispatch(func, types, args, kwargs)
        finally:
            self._working = False

    def _view(self, func: Any, args: tuple[Any, ...]) -> FakeTensor:
        """Make a view of the underlying meta tensor, in a tenth of the time: a flat buffer has a view a parameter."""
        with in_kernel_invocation_manager(self):
            view = func(*args)
        return FakeTensor(self, view, args[0].fake_device)

    def _result(
        self, operation: Operation, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, int | None]:
        """Result of an operation, from the cache if possible, and its FLOPs if they are counted."""
        tensors: list[FakeTensor] = []
        key: tuple[Any, ...] | None
        try:
            key = key_of(operation, args, kwargs, tensors)
            cached = self._memo.get(key)
        except (NoKeyError, TypeError):  # a relevant value, or an argument without a hash
            key = cached = None
        if cached is not None:
            self._charge(cached.cost)
            return cached.make(tensors), cached.flops
        out = (
            self._view(func, args)
            if key is not None and operation.is_seen
            else self._work_out(func, types, args, kwargs)
        )
        cost = None if self.charge is None else cost_of(func, args, kwargs, out)
        self._charge(cost)
        flops = None if operation.formula is None else operation.formula(*args, **kwargs, out_val=out)
        if key is not None and operation.is_remembered and (make := recipe(out, tensors)) is not None:
            self._memo[key] = _Known(make, cost, flops)
        return out, flops


def install() -> None:
    """Support assignments to simulated tensors, as modules and engines make, for the rest of the process."""
    FakeTensor.data = property(_DATA.__get__, _set_data)  # type: ignore[assignment]
    torch.nn.Module._apply = _apply  # type: ignore[method-assign]


def take_as_lists() -> None:
    """Let optimizers and clipping use for-each operations on simulated tensors, as on a GPU.

    They check the exact type. Adam's loop over single tensors has two temporaries at once, the for-each version one.
    """
    for module in (optimizer, _foreach_utils):
        if FakeTensor not in module._foreach_supported_types:
            module._foreach_supported_types.append(FakeTensor)


def _set_data(self: Any, value: torch.Tensor) -> None:
    """Set `tensor.data`, and the device of the fake tensor, which torch would leave unchanged."""
    _DATA.__set__(self, value)
    self.fake_device = value.device


def _apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
    """Replacement of torch.nn.Module._apply, which swaps tensor subclasses and fails if there are references to them.

    Assigning to `.data` is its way for ordinary tensors. A DTensor is replaced with another parameter, since assignment
    would not change its inside. torch's swap keeps the object, so other holders (a tied head) get the new one too.
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
                    replacement = torch.nn.Parameter(applied, requires_grad=now.requires_grad)
                    _EXCHANGED[now] = now = replacement
                self._parameters[name] = now
            elif applied is not now:
                now.data = applied
    self._buffers.update({name: fn(b) for name, b in self._buffers.items() if b is not None})
    return self


def _typed_number(value: float, dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return bool(value)
    return value if dtype.is_floating_point else int(value)
