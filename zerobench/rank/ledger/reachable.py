"""Walks the tensors of a model, optimizer or engine that is still being built, when memory may already be refused."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from zerobench.rank.ledger.engine_tensors import (
    NamedTensor,
    is_deepspeeds,
    walk_deepspeed,
    walk_module,
    walk_of,
    walk_optimizer_states,
)


def walk_reachable() -> Iterator[NamedTensor]:
    """Tensors of all modules and optimizers, including DeepSpeed's, that the garbage collector reaches."""
    present = gc.get_objects()
    modules = [thing for thing in present if issubclass(type(thing), torch.nn.Module)]
    for module in modules:
        if any(hasattr(parameter, "ds_tensor") for parameter in module._parameters.values()):
            yield from walk_module(module)
        else:  # without children, so that no tensor is walked again for each enclosing module
            shallow = torch.nn.Module()
            shallow._parameters, shallow._buffers = module._parameters, module._buffers
            yield from walk_module(shallow)
    engines = [module for module in modules if is_deepspeeds(type(getattr(module, "optimizer", None)))]
    of_engines = {id(engine.optimizer) for engine in engines}
    for optimizer in (thing for thing in present if is_deepspeeds(type(thing))):
        if id(optimizer) not in of_engines:
            with suppress(TypeError, ValueError, KeyError):  # the walk computes with a missing attribute
                yield from walk_of(type(optimizer))(_SoFar(optimizer))
    for optimizer in torch_optimizers():
        yield from walk_optimizer_states(optimizer)
    for engine in engines:
        yield from walk_deepspeed(engine)


def torch_optimizers() -> list[torch.optim.Optimizer]:
    """Every optimizer of this process; the inner one if it wraps another (accelerate's)."""
    present = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.optim.Optimizer)]
    return [
        optimizer
        for optimizer in present
        if not isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer)
    ]


class _SoFar:
    """Proxy of a DeepSpeed optimizer under construction, whose missing attributes are empty."""

    __slots__ = ("_of",)

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name, _NOTHING)


class _Nothing:
    """Empty as a sequence, as a mapping and as an object."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_args: Any) -> Any:
        return self


_NOTHING = _Nothing()
