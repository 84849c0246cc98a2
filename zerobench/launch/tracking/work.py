"""What a tracker looks into: a user's own training, of whatever make, as the tracker needs to know it."""

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
    """How a tracker hears of the training's calls."""

    def install(self) -> None:
        pass

    def restore(self) -> None:
        """Leave everything as it was; a second call does nothing."""


class Work(Protocol):
    """One training of one rank, whose objects are its script's: once the script has dropped them, they are gone."""

    @property
    def is_alive(self) -> bool:
        """Whether its objects exist. If not, `walk` yields nothing of them and the other members must not be used."""

    @property
    def module(self) -> torch.nn.Module: ...

    @property
    def device(self) -> torch.device:
        """Where it is trained."""

    @property
    def has_stepped(self) -> bool:
        """Whether its first optimizer step, which makes the states, is over."""

    def trial(self, name: str, steps: StepsSpec, sequence_length: int | None) -> TrialSpec:
        """What the work is, as far as it is known; `sequence_length` as its batches showed it."""

    def walk(self) -> Iterable[NamedTensor]:
        """Every tensor that it holds, by name."""

    def given(self) -> dict[str, Any]:
        """The DeepSpeed configuration that it was given, without secrets; empty without DeepSpeed."""

    def effective_config(self) -> dict[str, Any]:
        """The settings that it runs with, read back from it."""

    def departures(self, world_size: int, num_params: int) -> list[str]:
        """Where its memory departs from the ZeRO paper."""

    def context(self) -> ContextMemory | None:
        """Device memory outside torch, where somebody knows it; a tracker that comes later cannot read it."""

    def hooks(self, listener: Listener) -> Hooks:
        """How to hear of its calls."""


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
        """Everything that the engine holds."""
        return walk_deepspeed(self._engine) if self.is_alive else ()

    def given(self) -> dict[str, Any]:
        return engine_file(self._engine)

    def effective_config(self) -> dict[str, Any]:
        """With every default filled in."""
        return engine_config(self._engine)

    def departures(self, world_size: int, num_params: int) -> list[str]:
        """None where the configuration is of a kind that is not known."""
        try:
            return departures(self.given(), world_size, num_params)
        except (UserError, KeyError, TypeError, ValueError, IndexError, AttributeError):
            return []

    def context(self) -> ContextMemory | None:
        """Nobody read the driver before the engine was made."""
        return None

    def hooks(self, listener: Listener) -> Hooks:
        """The engine's methods, wrapped."""
        return EngineHooks(self._engine, listener)
