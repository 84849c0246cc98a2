"""Sees forward, backward and step in a training loop without DeepSpeed: plain torch, DDP, FSDP, a Trainer, accelerate.

torch lets these three be watched for all of a process: `torch.nn.Module.__call__`, `torch.autograd.backward`, and
hooks of every optimizer's step. The model is the first module that is called to be trained: it has parameters that
want gradients, and gradients are on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zerobench.launch.tracking.engine_hooks import Hearing, Listener
from zerobench.rank.ledger.storages import leave_uncompiled

ListenerFinder = Callable[[torch.nn.Module], Listener | None]


class LoopHooks(Hearing):
    """Watches all of this process's training, from `install` until `restore`.

    `find` is asked for a listener once the model is known; it gives none where somebody else listens to it.
    """

    def __init__(self, find: ListenerFinder) -> None:
        self._find = find
        self._root: weakref.ref[torch.nn.Module] | None = None
        self._listener: Listener | None = None
        self._undo: list[Callable[[], Any]] = []

    def install(self) -> None:
        """Begin to watch."""
        module: Any = torch.nn.Module
        autograd: Any = torch.autograd
        call, backward = module.__call__, autograd.backward
        module.__call__ = self._calling(call)
        autograd.backward = self._going_back(backward)
        before = register_optimizer_step_pre_hook(self._step_begins)
        after = register_optimizer_step_post_hook(self._step_ended)
        self._undo = [
            before.remove,
            after.remove,
            lambda: setattr(module, "__call__", call),
            lambda: setattr(autograd, "backward", backward),
        ]

    def restore(self) -> None:
        """Watch no longer; a second call does nothing."""
        undo, self._undo = self._undo, []
        for restore in undo:
            restore()
        self._listener = None

    def _calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._depth or not self._is_root(module):
                return call(module, *args, **kwargs)
            listener = self._listener
            if listener is None:
                return call(module, *args, **kwargs)
            with self._heard(listener):
                listener.forward_begins(args, kwargs)
                output = call(module, *args, **kwargs)
                listener.forward_ended(output)
            return output

        # As torch passes over the function in its place: else `module.compile()`, which compiles what of a model's code
        # is not torch's own, would compile this around each of torch's modules.
        leave_uncompiled(called)
        return called

    def _is_root(self, module: torch.nn.Module) -> bool:
        may_be = self._root is None and torch.is_grad_enabled() and module.training
        if may_be and any(parameter.requires_grad for parameter in module.parameters()):
            self._root = weakref.ref(module)
            self._listener = self._find(module)
        return self._root is not None and module is self._root() and torch.is_grad_enabled()

    def _going_back(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def going_back(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            listener = self._listener
            if listener is None or self._depth:
                return backward(tensors, *args, **kwargs)
            with self._heard(listener):
                listener.backward_begins(tensors if isinstance(tensors, torch.Tensor) else None)
                result = backward(tensors, *args, **kwargs)
                listener.backward_ended()
            return result

        return going_back

    def _step_begins(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._listener is not None and not self._depth:
            self._listener.step_begins()

    def _step_ended(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._listener is not None and not self._depth:
            self._listener.step_ended()
