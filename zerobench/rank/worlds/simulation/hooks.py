"""An exception in a hook of the backward pass ends the rank there and then, with its reason kept.

It could not be passed on. While it leaves the hook, torch's stream guard asks the device for its type; that of a device
that Python alone knows is a call of Python (torch/csrc/acc/Module.cpp, PythonDeviceGuard::exchangeStream), which Python
refuses while an exception is set, and the guard may not raise: the process would be aborted without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from zerobench.common.rank_processes import leave

End = Callable[[BaseException], int]
"""Keeps what ended the rank, and tells the exit status."""


def install(end: End) -> None:
    """Hooks of tensors, and those that bring back what autograd kept, end the process by `end` where they raise.

    Hooks of autograd's nodes are left as they are: their types are C's.
    """
    tensor: Any = torch.Tensor
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        setattr(tensor, name, _registering(getattr(tensor, name), end))
    init = saved_tensors_hooks.__init__

    @wraps(init)
    def ending_init(self: saved_tensors_hooks, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        init(self, pack_hook, _ending(unpack_hook, end))

    saved_tensors_hooks.__init__ = ending_init  # type: ignore[method-assign]


def _registering(register: Callable[..., Any], end: End) -> Callable[..., Any]:
    @wraps(register)
    def registering(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        return register(tensor, _ending(hook, end))

    return registering


def _ending(hook: Callable[..., Any], end: End) -> Callable[..., Any]:
    @wraps(hook)
    def ending(*arguments: Any) -> Any:
        try:
            return hook(*arguments)
        except BaseException as error:  # noqa: BLE001 -- whatever it is, it cannot leave here
            leave(end(error))

    return ending
