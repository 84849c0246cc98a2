"""Replacements of DeepSpeed's compiled kernels: nothing to build, nothing computed, the same allocations.

Optimizers, the quantizer and the asynchronous I/O handle are Python classes around compiled modules. The classes run
unchanged, with their states and buffers; the modules are replaced by ones with the same calls, which allocate what the
real ones do (the page-locked buffers of the I/O handle) and compute nothing. Neither nvcc nor libaio is needed.
DeepCompile's module has no kernel and is the real one (deepcompile.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import torch

from zerobench.common.block_io import BlockIo
from zerobench.emulator.inside import deepcompile, helpers
from zerobench.estimate.clock.trace import DeviceWork, Drive, DriveWait, Host, tell

_swapped_bytes: dict[str, int] = {}
"""Size of each file written by a swapper, by path. No file exists."""
_traffic = {"read": 0, "written": 0}


def install() -> None:
    """Replace DeepSpeed's kernels, for the rest of the process."""
    from deepspeed.ops import op_builder
    from deepspeed.ops.op_builder.builder import OpBuilder

    OpBuilder.load = _load
    op_builder.AsyncIOBuilder.load = _load  # it has one of its own, which builds another kernel first
    op_builder.AsyncIOBuilder.is_compatible = lambda *_, **__: True  # asks for libaio
    op_builder.QuantizerBuilder = _QuantizerBuilder  # the CPU's, which were imported, have none
    _keep_off_the_disk()
    helpers.install()


def _keep_off_the_disk() -> None:
    # Swap folders are neither created nor emptied: the drive may not exist
    from deepspeed.runtime.swap_tensor import optimizer_utils, partitioned_param_swapper
    from deepspeed.runtime.zero import stage3

    def nothing(*_: Any, **__: Any) -> None:
        pass

    without_folders = SimpleNamespace(path=os.path, makedirs=nothing)
    for module in (stage3, optimizer_utils, partitioned_param_swapper):
        module.os = without_folders
    partitioned_param_swapper.shutil = SimpleNamespace(rmtree=nothing)


def read_block_io() -> BlockIo:
    """Bytes read and written by the swappers so far."""
    return BlockIo(_traffic["read"], _traffic["written"])


def swap_file_bytes(folder: Path, rank: int) -> dict[str, int]:
    """Bytes that this rank's swap files would have, in the form of zerobench.common.block_io.swap_file_bytes."""
    sizes = {"optimizer": 0, "parameters": 0}
    for path, nbytes in _swapped_bytes.items():
        parts = Path(path).parts
        if Path(path).is_relative_to(folder) and f"rank{rank}" in parts:
            sizes["optimizer" if "optimizer" in parts else "parameters"] += nbytes
    return sizes


def _update_on_device(chunk_size: int, _skip: Any, lists: Sequence[Sequence[torch.Tensor]], *_: Any) -> int:
    """An optimizer's update in place: gradients, the first of the lists, are read, all others read and written.

    The number of tensors and of their chunks per launch is limited (csrc/adam/multi_tensor_apply.cuh).
    """
    gradients = lists[0]
    chunks = sum(-(-tensor.numel() // chunk_size) for tensor in gradients)
    launches = max(-(-len(gradients) // _TENSORS_OF_LAUNCH[len(lists)]), -(-chunks // _CHUNKS_OF_LAUNCH))
    moved = 2 * sum(tensor.nbytes for each in lists for tensor in each) - sum(tensor.nbytes for tensor in gradients)
    tell(DeviceWork(moved, launches))
    return 0


_TENSORS_OF_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""By number of lists."""
_CHUNKS_OF_LAUNCH = 320


def _update_on_host(*given: Any) -> int:
    """An update by the processor: states and weights are read and written once; gradients are the second tensor."""
    tensors = [argument for argument in given if isinstance(argument, torch.Tensor)]
    if len(tensors) > 1:
        tell(Host(2 * (sum(tensor.nbytes for tensor in tensors) - tensors[1].nbytes)))
    return 0


def _lamb(weights: torch.Tensor, *_: Any) -> torch.Tensor:
    # csrc/lamb/fused_lamb_cuda.cpp returns the scaling coefficient of the update
    return torch.zeros(1, dtype=torch.float32, device=weights.device)


def _optimizer(*functions: str, update: Callable[..., int] = _update_on_device) -> Callable[[], Any]:
    return lambda: SimpleNamespace(**dict.fromkeys(functions, update))


def _moved(read_bytes: int = 0, written_bytes: int = 0) -> None:
    _traffic["read"] += read_bytes
    _traffic["written"] += written_bytes
    tell(Drive(read_bytes, written_bytes))


class _AioHandle:
    """csrc/aio/py_lib: reads and writes between page-locked buffers and files. A handle only waits for its own:
    swappers that read while they write have two (pipelined_optimizer_swapper.py).
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        self._locked: WeakSet[torch.UntypedStorage] = WeakSet()
        self._reads = self._writes = 0

    def new_cpu_locked_tensor(self, numel: int, example: torch.Tensor) -> torch.Tensor:
        """A page-locked host buffer (deepspeed_pin_tensor.cpp allocates the requested size, page-aligned)."""
        buffer = torch.empty(int(numel), dtype=example.dtype, device="cpu")
        self._locked.add(buffer.untyped_storage())
        return buffer

    def free_cpu_locked_tensor(self, buffer: torch.Tensor) -> bool:
        self._locked.discard(buffer.untyped_storage())
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage() in self._locked or getattr(tensor, "ds_pinned", False)

    def async_pread(self, buffer: torch.Tensor, _path: str, _offset: int = 0) -> int:
        _moved(read_bytes=buffer.nbytes)
        self._reads += 1
        return 0

    def async_pwrite(self, buffer: torch.Tensor, path: str, _offset: int = 0) -> int:
        _moved(written_bytes=buffer.nbytes)
        _swapped_bytes[path] = max(_swapped_bytes.get(path, 0), buffer.nbytes)
        self._writes += 1
        return 0

    def sync_pread(self, buffer: torch.Tensor, path: str, offset: int = 0) -> int:
        self.async_pread(buffer, path, offset)
        self.wait()
        return 1

    def sync_pwrite(self, buffer: torch.Tensor, path: str, offset: int = 0) -> int:
        self.async_pwrite(buffer, path, offset)
        self.wait()
        return 1

    def wait(self) -> int:
        reads, writes = self._reads, self._writes
        self._reads = self._writes = 0
        if reads or writes:
            tell(DriveWait(reads > 0, writes > 0))
        return reads + writes


class _Quantizer:
    """csrc/quantization/pt_binding.cpp: blocks of 8 or 4 bits in int8 tensors, an fp32 scale per block."""

    Symmetric = 0

    def quantize(self, values: torch.Tensor, groups: int, bits: int, _kind: int) -> tuple[torch.Tensor, torch.Tensor]:
        *outer, inner = values.shape
        return _packed(values, (*outer, inner * bits // 8)), _scales(values, groups)

    def dequantize(self, packed: torch.Tensor, _scale: Any, _groups: int, bits: int, _kind: int) -> torch.Tensor:
        """Always fp16, for any quantized type."""
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


_MODULES: dict[str, Callable[[], Any]] = {
    "CPUAdamBuilder": _optimizer("create_adam", "destroy_adam", "adam_update", "adam_rollback", update=_update_on_host),
    "CPUAdagradBuilder": _optimizer("create_adagrad", "destroy_adagrad", "adagrad_update", update=_update_on_host),
    "CPULionBuilder": _optimizer("create_lion", "destroy_lion", "lion_update", update=_update_on_host),
    "FusedAdamBuilder": _optimizer("multi_tensor_adam"),
    "FusedLionBuilder": _optimizer("multi_tensor_lion"),
    "FusedLambBuilder": lambda: SimpleNamespace(lamb=_lamb),
    "AsyncIOBuilder": lambda: SimpleNamespace(aio_handle=_AioHandle),
    "QuantizerBuilder": _Quantizer,
    "DeepCompileBuilder": deepcompile.load,
}
"""By the name of DeepSpeed's class."""


def _load(self: Any, verbose: bool = True) -> Any:  # noqa: ARG001 -- DeepSpeed's own signature
    name = type(self).__name__
    if name not in _MODULES:
        raise NotImplementedError(
            f"{name}: this compiled DeepSpeed kernel is not emulated; choices: {', '.join(sorted(_MODULES))}"
        )
    return _MODULES[name]()
