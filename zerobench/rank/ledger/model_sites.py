"""Allocation sites outside the table of known packages: a user's own modules and loss.

Allocations in a class of the model's modules belong to the forward pass. Allocations between the end of the forward
pass and the beginning of the backward pass, in otherwise unknown code, belong to the loss.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import CodeType

import torch
from torch.nn.parallel import DistributedDataParallel

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.sites import Origin, Site, SiteFinder, add_module

_AFTER_FORWARD = Site("between the forward and the backward pass", Origin.LOSS)
_ACCUMULATES = "AccumulateGrad"
_BUCKET = Site("a gradient, or DDP's bucket of gradients", Category.GRADIENTS)
"""DDP's reducer rebuilds its buckets, in C++, when the last gradient of the first backward pass arrives."""
_BARE = frozenset({torch.nn.Module, object})


class ModelSites(SiteFinder):
    """A SiteFinder that also knows the classes of `model`, where no known package decides."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._origins = _origins(model)
        self.after_forward = False
        """True between the end of the model's forward pass and the beginning of the backward pass."""
        self._has_buckets = any(isinstance(inner, DistributedDataParallel) for inner in model.modules())

    def __call__(self) -> Site:
        """Return the site of the caller's caller."""
        site = super().__call__()
        if self._has_buckets and site.name.endswith(_ACCUMULATES):
            return _BUCKET
        return _AFTER_FORWARD if self.after_forward and site.proves is None and site.node is None else site

    def _judge(self, code: CodeType) -> Site | None:
        return super()._judge(code) or self._model_site(code)

    def _model_site(self, code: CodeType) -> Site | None:
        owner = code.co_qualname.rpartition(".")[0]
        origin = self._origins.get((code.co_filename, owner))
        if origin is None:
            return None
        return add_module(Site(f"{PurePath(code.co_filename).name}:{code.co_qualname}", origin), code.co_qualname)


def _origins(model: torch.nn.Module) -> dict[tuple[str, str], Origin]:
    """Origin of code in each class of the model's modules and their bases, by file and qualified name."""
    classes = {base for module in model.modules() for base in type(module).__mro__} - _BARE
    return {
        (file, owner.__qualname__): Origin.LOSS if issubclass(owner, torch.nn.modules.loss._Loss) else Origin.FORWARD
        for owner in classes
        if (file := getattr(sys.modules.get(owner.__module__), "__file__", None)) is not None
    }
