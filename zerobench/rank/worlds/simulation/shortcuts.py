"""Shortcuts for work of DeepSpeed whose cost grows with the world, though most of its ranks are absent.

Each replaces the function named with its source, allocates and frees the same memory in the same order, and returns the
same values. A test compares each with the original.
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import FrameType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


@cache
def agree_with_absent_ranks() -> None:
    """Replace comparisons with other ranks, and queries of the machine, for the rest of the process. Once: modules that
    DeepSpeed imports later get the replaced functions.
    """
    import cpuinfo
    from deepspeed.utils import nvtx

    cpuinfo.get_cpu_info = dict  # would start programs to name the processor, only for a warning of CPUAdam
    nvtx.enable_nvtx = False  # DeepSpeed's own switch: most of its functions mark a range for a GPU profiler
    for module in [module for name, module in sys.modules.items() if name.startswith("deepspeed")]:
        for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
            if hasattr(module, name):
                setattr(module, name, _agreed)


def copy_at_once() -> None:
    """Replace functions that handle each rank's part of a tensor separately, for the rest of the process."""
    from deepspeed.runtime.zero import partition_parameters, stage3

    partition_parameters.AllGatherCoalescedHandle.wait = _wait
    stage3.reduce_scatter_coalesced = _reduce_scatter_coalesced
    torch.Tensor.narrow = _narrow  # type: ignore[method-assign, assignment]


def ask_once() -> None:
    """Replace queries that repeat at each operation, or at each of some thousand hooks of stage 3, for the rest of the
    process; call before any operation under a mode, since torch caches one of these functions then.
    """
    from deepspeed.runtime.zero import partition_parameters
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator
    from torch._library import simple_registry
    from torch.autograd import function

    simple_registry.find_torch_dispatch_rule = cache(simple_registry.find_torch_dispatch_rule)
    coordinator.iter_params = _shorter_walk(coordinator.iter_params)
    coordinator.z3_leaf_module = _is_leaf
    # Its result is composed but never printed (utils/debug.py).
    partition_parameters.debug_param2name_id_shape_device = lambda _parameter: ""
    partition_parameters.print_rank_0 = _quiet_printer(partition_parameters.print_rank_0)
    function.inspect = SimpleNamespace(signature=_signature)  # type: ignore[attr-defined, assignment]


def ask_cuda_alone() -> None:
    """Replace the search for an available device type with CUDA, for the rest of the process.

    torch tries all types (torch/_utils.py, _get_device_attr) at every request for the current stream.
    """
    torch._utils._get_current_device_index = torch.cuda.current_device


def install() -> None:
    """Install all shortcuts for a simulation, for the rest of the process."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from transformers.utils import import_utils

    agree_with_absent_ranks()
    copy_at_once()
    ask_once()
    dist._verify_params_across_processes = _agreed  # type: ignore[attr-defined]
    dist.Reducer._rebuild_buckets = _keep_integers(dist.Reducer._rebuild_buckets)  # type: ignore[attr-defined, method-assign, assignment]
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached
    ShardingPropagator._propagate_tensor_meta_non_cached = _unseen(propagate)  # type: ignore[method-assign]
    # transformers takes fake tensors for a compiler's, and would make an explicit mask for them.
    import_utils.is_fake_tensor = lambda _tensor: False


def _agreed(*_: Any, **__: Any) -> None:
    """Replace comparisons of integers with other ranks (runtime/zero/utils.py): there are none."""


def _shorter_walk(walk: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
    """Shortcut for iter_params (runtime/zero/partitioned_param_coordinator.py) of one module, without making names.

    For each module that it releases, the coordinator walks the modules of the next billion elements.
    """

    def walked(module: torch.nn.Module, recurse: bool = False) -> Iterable[Any]:
        if recurse:
            return walk(module, recurse)
        direct = {parameter: None for parameter in module._parameters.values() if parameter is not None}
        return [*direct, *(parameter for _, parameter in module.ds_external_parameters())]  # type: ignore[operator]

    return walked


def _is_leaf(module: torch.nn.Module) -> bool:
    """Shortcut for z3_leaf_module (utils/z3_leaf_module.py): few modules have the attribute."""
    return bool(vars(module).get("_z3_leaf", False))


def _quiet_printer(printed: Callable[..., None]) -> Callable[..., None]:
    """Shortcut for print_rank_0 (runtime/zero/partition_parameters.py), which asks for the rank before its flags."""

    def quiet(message: str, debug: bool = False, force: bool = False) -> None:
        if debug or force:
            printed(message, debug, force)

    return quiet


def _signature(forward: Callable[..., Any]) -> _Signature:
    """Cached inspect.signature for Function.apply (torch/autograd/function.py), which needs it at each call.

    DeepSpeed makes a class for each module, whose functions share their code.
    """
    is_plain = not (forward.__defaults__ or forward.__kwdefaults__ or vars(forward))
    key = forward.__code__ if is_plain else forward
    if key not in _signatures:
        _signatures[key] = _Signature(inspect.signature(forward))
    return _signatures[key]


class _Signature:
    """Binds positional arguments directly to positional parameters, and anything else as Python does."""

    def __init__(self, whole: inspect.Signature) -> None:
        self._whole = whole
        parameters = whole.parameters.values()
        self._defaults = tuple(parameter.default for parameter in parameters)
        self._is_simple = all(parameter.kind in _BY_POSITION for parameter in parameters)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Bind as inspect.BoundArguments, as far as `apply` needs it. Raises TypeError if the arguments do not fit."""
        rest = self._defaults[len(args) :]
        if kwargs or not self._is_simple or len(args) > len(self._defaults) or inspect.Parameter.empty in rest:
            return self._whole.bind(*args, **kwargs)
        return SimpleNamespace(args=args + rest, kwargs={}, apply_defaults=_agreed)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_signatures: dict[Any, _Signature] = {}


class _HostIntegers(TorchDispatchMode):
    """Keeps the values of integers that C++ writes on the host, broadcasts through the device, and reads on the host:
    those of rank 0 equal this rank's.
    """

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_host = kwargs.get("device") in {None, torch.device("cpu")}
        if func is torch.ops.aten.empty.memory_format and kwargs.get("dtype") is torch.int32 and on_host:
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default and not isinstance(args[0], FakeTensor):
            return args[0]
        return func(*args, **kwargs)


def _keep_integers(rebuild: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Let DDP's Reducer rebuild its buckets after the first step, in the order in which gradients arrived.

    It gets that order from rank 0 as a tensor's values (csrc/distributed/c10d/reducer.cpp, sync_bucket_indices).
    """

    def rebuilt(reducer: Any) -> bool:
        with _HostIntegers():  # type: ignore[no-untyped-call] # torch's base has no types
            return rebuild(reducer)

    return rebuilt


def _unseen(propagate: Callable[..., Any]) -> Callable[..., Any]:
    """Exclude ShardingPropagator._propagate_tensor_meta_non_cached (torch/distributed/tensor/_sharding_prop.py).

    It computes the shape of a result with its own fake tensors; within a simulation it would use the simulation's,
    which represent memory.
    """

    def propagated(self: Any, schema: Any) -> Any:
        with _disable_current_modes():
            return propagate(self, schema)

    return propagated


def _wait(self: Any, handle_dependency: bool = True) -> None:
    """Shortcut for AllGatherCoalescedHandle.wait (runtime/zero/partition_parameters.py) with one copy a parameter.

    The original narrows every rank's part out of the gathered tensor, N views a parameter, to concatenate them, and
    calls record_stream on each, where one call covers their common block.
    """
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus

    if self.complete:
        return
    self.allgather_handle.wait()
    if self.quantization:
        self.quantization.quant_handle.wait()
        values = self.quantization.backend.dequantize(self.quantization.quantized_param, self.quantization.scale_buffer)
        self.partitions = [values.to(self.params[0].device)]
    gathered = self.partitions[0]
    chunks = [_chunk_of(param, self.use_secondary_tensor) for param in self.params]
    row = self.quantization.partition_sz if self.quantization else sum(chunks)
    offset = gathered.storage_offset()
    for param, chunk in zip(self.params, chunks, strict=True):
        whole = torch.empty(param.ds_numel, dtype=gathered.dtype, device=gathered.device)
        _copy_rows(whole, chunk, gathered, offset, row)
        param.data = whole.view(param.ds_shape).to(param.ds_tensor.dtype)
        param.ds_status = ZeroParamStatus.AVAILABLE
        offset += chunk
    self.complete = True
    if not get_accelerator().is_synchronized_device():
        if handle_dependency:
            gathered.record_stream(get_accelerator().current_stream())
        else:
            AllGatherCoalescedHandle.data_buffer.append(self.partitions)


def _chunk_of(param: Any, use_secondary: bool) -> int:
    """Elements of a parameter in the part of each rank."""
    numel: int = param.ds_tensor.ds_numel
    return numel * param.ds_secondary_tensor_num_of_groups if use_secondary else numel


def _copy_rows(whole: torch.Tensor, chunk: int, rows: torch.Tensor, offset: int, stride: int) -> None:
    """Copy chunks, `stride` elements apart, from `offset` on in the memory of `rows`, into `whole`."""
    full, rest = divmod(whole.numel(), chunk)
    if full:
        whole.narrow(0, 0, full * chunk).view(full, chunk).copy_(rows.as_strided((full, chunk), (stride, 1), offset))
    if rest:
        end = rows.as_strided((rest,), (1,), offset + full * stride)
        whole.narrow(0, full * chunk, rest).copy_(end)


def _narrow(self: torch.Tensor, dim: int, start: Any, length: int) -> torch.Tensor:
    """Shortcut for Tensor.narrow: of the N parts of a gathered tensor only this rank's is ever used (see `_wait`).

    The other parts, which `_all_gather_dtype` (runtime/zero/partition_parameters.py) makes one by one, become the
    whole.
    """
    frame: FrameType = sys._getframe(1)
    if frame.f_code.co_name == "_all_gather_dtype" and start != length * frame.f_locals["rank_in_group"]:
        return self
    return torch.narrow(self, dim, start, length)


@torch.no_grad()
def _reduce_scatter_coalesced(tensors: Sequence[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
    """Shortcut for runtime/comm/coalesced_collectives.py with a copy a tensor instead of a view a rank and tensor."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    padded = [math.ceil(tensor.numel() / world_size) for tensor in tensors]
    offsets = list(itertools.accumulate(padded, initial=0))
    row = offsets.pop()
    first = tensors[0]
    padding: list[torch.Tensor] = []
    if len(tensors) == 1 and first.numel() % world_size == 0:
        buffer = first.view(-1)
    else:
        all_full = min(tensor.numel() // chunk for tensor, chunk in zip(tensors, padded, strict=True))
        padding = [
            torch.empty(size, dtype=first.dtype, device=first.device)
            for each in range(all_full, world_size)
            for tensor, chunk in zip(tensors, padded, strict=True)
            if (size := chunk - _chunk_numel(tensor, chunk, each)) > 0
        ]
        buffer = torch.empty(row * world_size, dtype=first.dtype, device=first.device)
        for tensor, chunk, offset in zip(tensors, padded, offsets, strict=True):
            _interleave(buffer, offset, row, tensor.view(-1), chunk)
    buffer.div_(world_size)
    part = buffer.narrow(0, rank * row, row)
    dist.reduce_scatter_tensor(part, buffer, group=group)
    parts = [
        part.narrow(0, offset, _chunk_numel(tensor, chunk, rank))
        for tensor, chunk, offset in zip(tensors, padded, offsets, strict=True)
    ]
    del padding  # the original also holds it until it returns
    return parts


def _interleave(buffer: torch.Tensor, offset: int, stride: int, flat: torch.Tensor, chunk: int) -> None:
    """Copy `flat` in chunks to `buffer`, `stride` elements apart, from `offset` on."""
    full, rest = divmod(flat.numel(), chunk)
    if full:
        rows = buffer.as_strided((full, chunk), (stride, 1), offset)
        rows.copy_(flat.narrow(0, 0, full * chunk).view(full, chunk))
    if rest:
        buffer.narrow(0, offset + full * stride, rest).copy_(flat.narrow(0, full * chunk, rest))


def _chunk_numel(tensor: torch.Tensor, chunk: int, rank: int) -> int:
    """Elements of `tensor` in the chunk of `rank`; the last ones may be short or empty."""
    return min(max(tensor.numel() - rank * chunk, 0), chunk)
