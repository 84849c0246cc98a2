"""A tracked training of any kind, as the tracker sees it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from zerobench.common.errors import UserError
from zerobench.config.trial.trial import StepsSpec, TrialSpec
from zerobench.estimate.memory.deepspeed.departures import departures
from zerobench.launch.tracking.engine_hooks import EngineHooks, Listener
from zerobench.launch.tracking.own_trial import engine_file, engine_trial
from zerobench.rank.ledger.engine_config import engine_config
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_deepspeed
from zerobench.records.records import ContextMemory


class Hooks(Protocol):
    """Subscription to the training's calls."""

    def install(self) -> None:
        pass

    def restore(self) -> None:
        """Restore everything; a second call does nothing."""


class Work(Protocol):
    """Training of one rank, whose objects belong to its script: once the script has dropped them, they are gone."""

    @property
    def is_alive(self) -> bool:
        """True if its objects exist. If not, `walk` yields nothing of them and the other members must not be used."""

    @property
    def module(self) -> torch.nn.Module: ...

    @property
    def device(self) -> torch.device:
        """Device of the training."""

    @property
    def has_stepped(self) -> bool:
        """True after its first optimizer step, which makes the states."""

    def trial(self, name: str, steps: StepsSpec, sequence_length: int | None) -> TrialSpec:
        """Describe the work, as far as it is known; `sequence_length` comes from its batches."""

    def walk(self) -> Iterable[NamedTensor]:
        """Yield every tensor that it holds, by name."""

    def given(self) -> dict[str, Any]:
        """Return its given DeepSpeed configuration, without secrets; empty without DeepSpeed."""

    def effective_config(self) -> dict[str, Any]:
        """Return the settings in effect, read back from it."""

    def departures(self, world_size: int, num_params: int) -> list[str]:
        """List where its memory departs from the ZeRO paper."""

    def context(self) -> ContextMemory | None:
        """Return device memory outside torch, if known; a tracker that comes later cannot read it."""

    def hooks(self, listener: Listener) -> Hooks:
        """Return the hooks for its calls."""


class EngineWork:
    """A DeepSpeed engine."""

    def __init__(self, engine: Any) -> None:
        self._reference = weakref.ref(engine)
        self.device = torch.device(engine.device)

    @property
    def is_alive(self) -> bool:
        return self._reference() is not None

    @property
    def _engine(self) -> Any:
        engine = self._reference()
        if engine is None:
            raise ReferenceError("the script has deleted its engine")
        return engine

    @property
    def module(self) -> torch.nn.Module:
        """The engine's model."""
        module: torch.nn.Module = self._engine.module
        return module

    @property
    def has_stepped(self) -> bool:
        """By the engine's own count."""
        return bool(getattr(self._engine, "global_steps", 0))

    def trial(self, name: str, steps: StepsSpec, sequence_length: int | None) -> TrialSpec:
        """By the engine's configuration."""
        return engine_trial(self._engine, name, steps, sequence_length)

    def walk(self) -> Iterable[NamedTensor]:
        """Yield all tensors of the engine."""
        return walk_deepspeed(self._engine) if self.is_alive else ()

    def given(self) -> dict[str, Any]:
        return engine_file(self._engine)

    def effective_config(self) -> dict[str, Any]:
        """Every default is filled in."""
        return engine_config(self._engine)

    def departures(self, world_size: int, num_params: int) -> list[str]:
        """None for a configuration of an unknown kind."""
        try:
            return departures(self.given(), world_size, num_params)
        except (UserError, KeyError, TypeError, ValueError, IndexError, AttributeError):
            return []

    def context(self) -> ContextMemory | None:
        """None: the driver was not read before the engine was made."""
        return None

    def hooks(self, listener: Listener) -> Hooks:
        """The engine's methods, wrapped."""
        return EngineHooks(self._engine, listener)
