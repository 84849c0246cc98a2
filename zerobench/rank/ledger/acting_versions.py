"""The releases that a rank's memory depends on, as its own process imported them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

import torch

_IMPORTED = ("torch", "deepspeed", "transformers")
"""Packages that act wherever they are imported."""


def acting_versions(model: torch.nn.Module | None = None) -> dict[str, str]:
    """The version of each package that acts in this process, by the package's name.

    PEFT acts where a module of `model` is its own. transformers imports accelerate by itself, so accelerate counts once
    a program has asked it for its state.
    """
    acting = [name for name in _IMPORTED if name in sys.modules]
    if model is not None and any(type(module).__module__.startswith("peft.") for module in model.modules()):
        acting.append("peft")
    if _accelerates(sys.modules):
        acting.append("accelerate")
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in acting}
    return {name: str(version) for name, version in versions.items() if version is not None}


def _accelerates(modules: Mapping[str, ModuleType]) -> bool:
    """Whether accelerate.PartialState, which Accelerator and Trainer share, was made."""
    state = getattr(modules.get("accelerate.state"), "PartialState", None)
    return bool(getattr(state, "_shared_state", None))
