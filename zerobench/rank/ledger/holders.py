"""Holders of memory: the module that runs while autograd saves a tensor, and the owner of a known allocation site."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import torch

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.sites import Origin, Site
from zerobench.records.records import Holder

_CALL = torch.nn.Module._call_impl.__code__
_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")
_ENGINES = (
    "deepspeed/",
    "horovod/",
    "torch/nn/parallel/",
    "torch/distributed/",
)
_OPTIMIZERS = ("torch/optim/", "zerobench/rank/optimizers/", "zerobench/rank/training/mixed_precision.py")
_KEPT_FOR_BACKWARD = {Category.ACTIVATIONS, Category.LOGITS_AND_LOSS}


class ModulePath(NamedTuple):
    """A module's class, and its name in the model with `*` for layer numbers."""

    module: str | None = None
    path: str | None = None


class ModulePaths:
    """Names of a model's modules, by address, so that no module is kept alive."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def know(self, model: torch.nn.Module) -> None:
        """Read the names of the modules of `model`, which may have changed since the last step."""
        self._paths = {id(module): _LAYER.sub("*", name) for name, module in model.named_modules()}

    def running(self) -> ModulePath:
        """Return the innermost module whose forward pass is on the stack."""
        module = next(_running(), None)
        if module is None:
            return ModulePath()
        return ModulePath(type(module).__name__, self._paths.get(id(module)) or None)


def _running() -> Iterator[torch.nn.Module]:
    """Modules on the caller's stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            yield frame.f_locals["self"]
        frame = frame.f_back


def holders_by_birth(birth: Site, category: Category) -> Iterator[Holder]:
    """Yield the holder of memory allocated at `birth`, if the site alone is evidence of one."""
    if birth.proves in {Origin.FORWARD, Origin.LOSS, Origin.AUTOGRAD}:
        yield Holder.AUTOGRAD if category in _KEPT_FOR_BACKWARD and birth.node is None else Holder.OPERATION
    elif birth.name.startswith(_ENGINES):
        yield Holder.ENGINE
    elif birth.name.startswith(_OPTIMIZERS):
        yield Holder.OPTIMIZER
