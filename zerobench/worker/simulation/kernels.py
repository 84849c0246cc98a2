"""What DeepSpeed's compiled kernels leave behind, without the kernels: nothing to build, nothing computed.

FusedAdam, CPUAdam, the quantizer and the asynchronous I/O handle are Python classes around compiled modules. The
classes run as they are, with their states and buffers; the modules are replaced by ones that take the same calls,
allocate what the real ones allocate (the page-locked buffers of the I/O handle) and compute nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch

from zerobench.memory.block_io import BlockIo

_swapped_bytes: dict[str, int] = {}
"""Size of each file that a swapper has written, by its path. No file exists."""
_traffic = {"read": 0, "written": 0}


def install() -> None:
    """Give DeepSpeed these kernels in place of its own, for the rest of the process."""
    from deepspeed.ops import op_builder
    from deepspeed.ops.op_builder.builder import OpBuilder

    OpBuilder.load = _load
    op_builder.AsyncIOBuilder.load = _load  # it has one of its own, which builds another kernel first
    op_builder.QuantizerBuilder = _QuantizerBuilder  # the CPU's, which were imported, have none


def read_block_io() -> BlockIo:
    """Bytes read and written by the swappers so far."""
    return BlockIo(_traffic["read"], _traffic["written"])


def swap_file_bytes(folder: Path, rank: int) -> dict[str, int]:
    """Bytes that the swap files of this rank would have, split as zerobench.memory.block_io.swap_file_bytes does."""
    sizes = {"optimizer": 0, "parameters": 0}
    for path, nbytes in _swapped_bytes.items():
        parts = Path(path).parts
        if Path(path).is_relative_to(folder) and f"rank{rank}" in parts:
            sizes["optimizer" if "optimizer" in parts else "parameters"] += nbytes
    return sizes


class _Adam:
    """ops/adam/cpu_adam.py and fused_adam.py: updates in place, no memory of its own."""

    def create_adam(self, *_: Any) -> int:
        return 0

    def destroy_adam(self, *_: Any) -> int:
        return 0

    def adam_update(self, *_: Any) -> int:
        return 0

    def multi_tensor_adam(self, *_: Any) -> None:
        """csrc/adam/multi_tensor_adam.cu works on the tensors in place."""


class _AioHandle:
    """csrc/aio/py_lib: reads and writes between page-locked buffers and files."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._locked: WeakSet[torch.UntypedStorage] = WeakSet()
        self._pending = 0

    def new_cpu_locked_tensor(self, numel: int, example: torch.Tensor) -> torch.Tensor:
        """A page-locked host buffer (deepspeed_pin_tensor.cpp allocates what is asked, page-aligned)."""
        buffer = torch.empty(int(numel), dtype=example.dtype, device="cpu")
        self._locked.add(buffer.untyped_storage())
        return buffer

    def free_cpu_locked_tensor(self, buffer: torch.Tensor) -> bool:
        self._locked.discard(buffer.untyped_storage())
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage() in self._locked or getattr(tensor, "ds_pinned", False)

    def async_pread(self, buffer: torch.Tensor, _path: str, _offset: int = 0) -> int:
        _traffic["read"] += buffer.nbytes
        self._pending += 1
        return 0

    def async_pwrite(self, buffer: torch.Tensor, path: str, _offset: int = 0) -> int:
        _traffic["written"] += buffer.nbytes
        _swapped_bytes[path] = max(_swapped_bytes.get(path, 0), buffer.nbytes)
        self._pending += 1
        return 0

    def sync_pread(self, buffer: torch.Tensor, _path: str, _offset: int = 0) -> int:
        _traffic["read"] += buffer.nbytes
        return 1

    def sync_pwrite(self, buffer: torch.Tensor, path: str, _offset: int = 0) -> int:
        _traffic["written"] += buffer.nbytes
        _swapped_bytes[path] = max(_swapped_bytes.get(path, 0), buffer.nbytes)
        return 1

    def wait(self) -> int:
        done, self._pending = self._pending, 0
        return done


class _Quantizer:
    """csrc/quantization/pt_binding.cpp: blocks of 8 or 4 bits in int8 tensors, an fp32 scale for each block."""

    Symmetric = 0

    def quantize(self, values: torch.Tensor, groups: int, bits: int, _kind: int) -> tuple[torch.Tensor, torch.Tensor]:
        *outer, inner = values.shape
        return _packed(values, (*outer, inner * bits // 8)), _scales(values, groups)

    def dequantize(self, packed: torch.Tensor, _scale: Any, _groups: int, bits: int, _kind: int) -> torch.Tensor:
        """Always fp16, whatever was quantized."""
        *outer, inner = packed.shape
        return torch.empty((*outer, inner * 8 // bits), dtype=torch.float16, device=packed.device)

    def swizzle_quant(self, values: torch.Tensor, groups: int, bits: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return _packed(values, (values.numel() * bits // 8,)), _scales(values, groups)

    def quantized_reduction(
        self, packed: torch.Tensor, _scale: Any, _in: int, groups: int, _bits: int, _kind: int, ranks: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        *outer, inner = packed.shape
        return _packed(packed, (*outer, inner // ranks)), _scales(packed, groups)


class _QuantizerBuilder:
    """op_builder/quantizer.py."""

    def load(self, verbose: bool = True) -> _Quantizer:  # noqa: ARG002 -- DeepSpeed's own signature
        return _Quantizer()


def _packed(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int8, device=like.device)


def _scales(like: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.empty((groups, 1), dtype=torch.float32, device=like.device)


class _Aio:
    aio_handle = _AioHandle


_MODULES = {"CPUAdamBuilder": _Adam, "FusedAdamBuilder": _Adam, "AsyncIOBuilder": _Aio}


def _load(self: Any, verbose: bool = True) -> Any:  # noqa: ARG001 -- DeepSpeed's own signature
    name = type(self).__name__
    if name not in _MODULES:
        raise NotImplementedError(f"the simulated device has no {name}")
    return _MODULES[name]()
