"""What is trained on an emulated GPU, as the tracker needs to know it: DeepSpeed's engine, or a loop of torch's."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from zerobench.common.vocabulary import Category
from zerobench.config.trial.trial import SCRIPT, StepsSpec, TrialSpec
from zerobench.emulator.inside.account import outside_torch
from zerobench.launch.emulate.inside.pipeline_hooks import PipelineHooks
from zerobench.launch.emulate.inside.pipeline_peers import StagesBefore
from zerobench.launch.emulate.part import Part, as_emulated
from zerobench.launch.tracking.engine_hooks import Listener
from zerobench.launch.tracking.own_trial import loop_trial
from zerobench.launch.tracking.work import EngineWork, Hooks
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_module, walk_optimizer_states
from zerobench.rank.ledger.fsdp_tensors import walk_flat, walk_fsdp
from zerobench.rank.ledger.reachable import torch_optimizers
from zerobench.records.records import ContextMemory, Holder


class InstalledHooks:
    """Hooks that somebody else has installed already."""

    def install(self) -> None:
        pass

    def restore(self) -> None:
        """It is not ours to do."""


class EmulatedEngine(EngineWork):
    """A DeepSpeed engine; whose calls others hear for it."""

    def __init__(self, engine: Any, part: Part) -> None:
        super().__init__(engine)
        self._part = part

    def trial(self, name: str, steps: StepsSpec, sequence_length: int | None) -> TrialSpec:
        """With how its figures were obtained."""
        return as_emulated(super().trial(name, steps, sequence_length), self._part)

    def context(self) -> ContextMemory | None:
        """By the emulated device's account."""
        return outside_torch()

    def hooks(self, listener: Listener) -> Hooks:  # noqa: ARG002 -- as promised
        return InstalledHooks()

    def heard_by(self, listener: Listener) -> Hooks:
        """How the engine's calls are heard: a pipeline takes its steps by itself."""
        if hasattr(self._engine, "_INSTRUCTION_MAP"):
            StagesBefore(self._engine).install()
            return PipelineHooks(self._engine, listener)
        return super().hooks(listener)


class EmulatedLoop:
    """A module and the optimizers that this process has."""

    has_stepped = False

    def __init__(self, module: torch.nn.Module, part: Part) -> None:
        self._reference = weakref.ref(module)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._part = part

    @property
    def is_alive(self) -> bool:
        return self._reference() is not None

    @property
    def module(self) -> torch.nn.Module:
        """The script's model."""
        module = self._reference()
        if module is None:
            raise ReferenceError("the script has deleted its model")
        return module

    @property
    def strategy(self) -> str:
        """What divides the work among the ranks."""
        if is_fsdp2(self.module) or is_fsdp1(self.module):
            return "fsdp"
        if any(isinstance(inner, DistributedDataParallel) for inner in self.module.modules()):
            return "ddp"
        return "single" if self._part.world_size == 1 else SCRIPT

    def trial(self, name: str, steps: StepsSpec, sequence_length: int | None) -> TrialSpec:
        """As far as the module and its optimizers tell."""
        trial = loop_trial(inner_module(self.module), torch_optimizers(), self.strategy, name, steps, sequence_length)
        return as_emulated(trial, self._part)

    def walk(self) -> Iterable[NamedTensor]:
        """The module's tensors and the optimizers' states."""
        if self.is_alive:
            yield from walk_trained(self.module)
        for optimizer in torch_optimizers():
            yield from walk_optimizer_states(optimizer)

    def given(self) -> dict[str, Any]:
        return {}

    def effective_config(self) -> dict[str, Any]:
        """The optimizers' settings."""
        settings = [_settings(optimizer) for optimizer in torch_optimizers()]
        return settings[0] if len(settings) == 1 else {"optimizers": settings}

    def departures(self, world_size: int, num_params: int) -> list[str]:  # noqa: ARG002 -- as promised
        """No ZeRO."""
        return []

    def context(self) -> ContextMemory | None:
        """By the emulated device's account."""
        return outside_torch()

    def hooks(self, listener: Listener) -> Hooks:  # noqa: ARG002 -- as promised
        """The whole process is watched already."""
        return InstalledHooks()


def walk_trained(module: torch.nn.Module) -> Iterator[NamedTensor]:
    """Parameters, gradients and buffers of a module, whoever divides them."""
    if is_fsdp2(module):
        yield from walk_fsdp(module, _NoStates(), are_masters=_gathers_in_16_bits(module))
    elif is_fsdp1(module):
        yield from walk_flat(module)
        yield from (NamedTensor(buffer, Category.MODEL_BUFFERS, holder=Holder.MODEL) for buffer in module.buffers())
    else:
        yield from walk_module(module)


class _NoStates:
    """An optimizer's states are walked by themselves."""

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}


def is_fsdp2(module: torch.nn.Module) -> bool:
    """Whether fully_shard was called on it or within it."""
    return any(hasattr(inner, "_get_fsdp_state") for inner in module.modules())


def is_fsdp1(module: torch.nn.Module) -> bool:
    """Whether it is, or holds, a FullyShardedDataParallel."""
    return any(isinstance(inner, FullyShardedDataParallel) for inner in module.modules())


def _gathers_in_16_bits(module: torch.nn.Module) -> bool:
    """Whether what is kept is fp32 and what is computed with is not: then what is kept are master weights."""
    sharded: list[Any] = [inner for inner in module.modules() if hasattr(inner, "_get_fsdp_state")]
    policies = [inner._get_fsdp_state()._mp_policy for inner in sharded]
    dtypes = {parameter.dtype for parameter in module.parameters()}
    return dtypes == {torch.float32} and any(p.param_dtype not in (None, torch.float32) for p in policies)


def inner_module(module: torch.nn.Module) -> torch.nn.Module:
    """What DDP, FSDP or torch.compile was put around."""
    for name in ("module", "_orig_mod"):
        inner = getattr(module, name, None)
        if isinstance(inner, torch.nn.Module) and len(module._modules) == 1:
            return inner_module(inner)
    return module


def _settings(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    group = {k: v for k, v in optimizer.param_groups[0].items() if k not in ("params", "param_names")}
    plain = {k: v if isinstance(v, int | float | bool | str | None) else str(v) for k, v in group.items()}
    return {"optimizer": type(optimizer).__name__, **plain}
