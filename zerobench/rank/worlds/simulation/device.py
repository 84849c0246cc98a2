"""Makes torch know the simulated GPU: its PrivateUse1 device type, under the name `simgpu`, from Python alone.

Must be done before DeepSpeed is imported, which keeps torch's constructors of tensors for itself.
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
    """torch.simgpu."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """What autocast may choose."""
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, _device: object = None) -> torch.Tensor:
        """Where nothing has a value, nothing is drawn: no state."""
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, _state: torch.Tensor, _device: object = None) -> None:
        pass


_KERNELS = torch.library.Library("aten", "IMPL")  # kept, or what it registers goes with it


def register() -> None:
    """Register the device type with torch."""
    backend_registration._setup_privateuseone_for_python_backend(DEVICE, backend_module=_Module())
    _KERNELS.impl("silu_backward", _silu_backward, "AutogradPrivateUse1")
    torch.tensor = _tensor
    # There is one stream, and it is done.
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]


def _silu_backward(gradient: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """One kernel, as on CUDA: devices that torch does not know get it as a formula, whose parts are memory.

    (aten/src/ATen/native/native_functions.yaml: CPU, CUDA: silu_backward; CompositeImplicitAutograd:
    math_silu_backward.)
    """
    with torch._C._AutoDispatchBelowAutograd():
        out: torch.Tensor = torch.ops.aten.silu_backward.default(gradient, value)
    return out


def _tensor(data: Any, *arguments: Any, device: Any = None, **options: Any) -> torch.Tensor:
    """torch.tensor, which copies data to a device below the level that a dispatch mode sees."""
    device = _context_device() if device is None else device
    host: torch.Tensor = _real_tensor(data, *arguments, device=None if device is None else "cpu", **options)
    if device is None or torch.device(device).type != DEVICE:
        return host if device is None else host.to(device)
    return torch.empty(host.shape, dtype=host.dtype, device=device)


def _context_device() -> Any:
    """The simulated GPU within `with torch.device(DEVICE)`, whose context does not see this module's torch.tensor."""
    contexts = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return contexts[-1].device if contexts and contexts[-1].device.type == DEVICE else None
