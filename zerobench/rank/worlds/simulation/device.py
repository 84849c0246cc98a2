"""Registers the simulated GPU with torch, as its PrivateUse1 device type under the name `simgpu`, purely in Python.

Must be done before DeepSpeed's import, which keeps references to torch's tensor constructors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import backend_registration
from torch.utils._device import DeviceContext

from zerobench.rank.ledger.costs import SIMULATED_DEVICE as DEVICE

__all__ = ["DEVICE", "register"]

_real_tensor: Any = torch.tensor


class _Module(backend_registration._DummyBackendModule):
    """The module torch.simgpu."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Types for autocast."""
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, _device: object = None) -> torch.Tensor:
        """Return an empty state: nothing is drawn without values."""
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, _state: torch.Tensor, _device: object = None) -> None:
        pass


_KERNELS = torch.library.Library("aten", "IMPL")  # its registrations end with the object


def register() -> None:
    """Register the device type with torch."""
    backend_registration._setup_privateuseone_for_python_backend(DEVICE, backend_module=_Module())
    _KERNELS.impl("silu_backward", _silu_backward, "AutogradPrivateUse1")
    torch.tensor = _tensor
    # Work on the simulated device is always finished.
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]


def _silu_backward(gradient: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Run one kernel, as on CUDA: for unknown devices torch composes it of operations, which allocate temporaries.

    (aten/src/ATen/native/native_functions.yaml: CPU, CUDA: silu_backward; CompositeImplicitAutograd:
    math_silu_backward.)
    """
    with torch._C._AutoDispatchBelowAutograd():
        out: torch.Tensor = torch.ops.aten.silu_backward.default(gradient, value)
    return out


def _tensor(data: Any, *arguments: Any, device: Any = None, **options: Any) -> torch.Tensor:
    """Replacement of torch.tensor, which copies data to a device below the dispatch mode."""
    if device is None:  # `with torch.device(DEVICE)` does not see this replacement of torch.tensor
        contexts = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
        device = contexts[-1].device if contexts and contexts[-1].device.type == DEVICE else None
    host: torch.Tensor = _real_tensor(data, *arguments, device=None if device is None else "cpu", **options)
    if device is None or torch.device(device).type != DEVICE:
        return host if device is None else host.to(device)
    return torch.empty(host.shape, dtype=host.dtype, device=device)
