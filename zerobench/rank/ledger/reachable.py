"""The tensors of whatever this process trains, before anybody knows what that is.

Memory may be refused while the model, its optimizer or the engine is being built.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
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
    """Modules and optimizers, DeepSpeed's too, as far as the garbage collector reaches and each is built."""
    present = gc.get_objects()
    modules = [thing for thing in present if issubclass(type(thing), torch.nn.Module)]
    for module in modules:
        if any(hasattr(parameter, "ds_tensor") for parameter in module._parameters.values()):
            yield from walk_module(module)
        else:  # each by itself, so that no tensor is walked once more for each module that it lies in
            shallow = torch.nn.Module()
            shallow._parameters, shallow._buffers = module._parameters, module._buffers
            yield from walk_module(shallow)
    engines = [module for module in modules if is_deepspeeds(type(getattr(module, "optimizer", None)))]
    of_engines = {id(engine.optimizer) for engine in engines}
    for optimizer in (thing for thing in present if is_deepspeeds(type(thing))):
        if id(optimizer) not in of_engines:
            yield from _walk_unfinished(optimizer)
    for optimizer in torch_optimizers():
        yield from walk_optimizer_states(optimizer)
    for engine in engines:
        yield from walk_deepspeed(engine)


def torch_optimizers() -> list[torch.optim.Optimizer]:
    """Every optimizer of this process; of those that wrap another (accelerate's) the inner one."""
    present = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.optim.Optimizer)]
    return [
        optimizer
        for optimizer in present
        if not isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer)
    ]


def _walk_unfinished(optimizer: Any) -> Iterator[NamedTensor]:
    """What there is so far of one of DeepSpeed's optimizers: none of its attributes need be there yet."""
    try:
        yield from walk_of(type(optimizer))(_SoFar(optimizer))
    except (TypeError, ValueError, KeyError):  # it is computed with what is not there
        return


class _SoFar:
    """An object that holds nothing under each name that it has not got yet."""

    __slots__ = ("_of",)

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name, _NOTHING)


class _Nothing:
    """Empty, whether taken for a number of things, a mapping or an object."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_args: Any) -> Any:
        return self


_NOTHING = _Nothing()
