"""Ends the rank at once, with a record of the reason, when a hook of the backward pass raises.

Such an exception cannot propagate. While it leaves the hook, torch's stream guard asks the device for its type; for a
device that only Python knows this calls Python (torch/csrc/acc/Module.cpp, PythonDeviceGuard::exchangeStream), which
fails while an exception is set, and the guard must not raise: the process would abort silently.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from zerobench.common.rank_processes import leave

End = Callable[[BaseException], int]
"""Records the error that ended the rank, and returns the exit status."""


def install(end: End) -> None:
    """Make tensor hooks and unpack hooks of saved tensors end the process through `end` when they raise.

    Hooks of autograd nodes are not covered, since their types are C types.
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
        except BaseException as error:  # noqa: BLE001 -- no exception may leave a hook
            leave(end(error))

    return ending
