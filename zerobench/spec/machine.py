"""The machine that a sweep is laid out for: what `auto` means on it, and what cannot run there.

A plain value, so that a plan can be made for a machine that is not at hand; `detect_machine` fills it in for this
one without importing torch (torch asks the driver, which takes seconds and device memory).
"""

import os
import platform
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from zerobench.control_groups import host_memory_bytes
from zerobench.environments import missing_environments
from zerobench.spec import tpu
from zerobench.spec.base import Spec
from zerobench.spec.optimizers import optimizer_kernels
from zerobench.spec.strategy import strategy_packages
from zerobench.spec.toolchain import (
    can_build_ops,
    can_compile_graphs,
    has_libaio,
    op_is_built,
    package_folder,
    torch_has_cuda,
    torch_has_rpc,
)
from zerobench.spec.trial import Count, Positive

DEFAULT_CPU_RANKS = 2
"""Ranks per node that `auto` means where there is no GPU: the fewest that partition anything."""

CPU_RANKS_PER_CORE = 4
"""Ranks on one CPU core beyond which a trial would measure the scheduler."""


_NO_FP16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16"}
"""Values of ONEDNN_MAX_CPU_ISA that turn oneDNN's fp16 instructions off (oneDNN, "CPU Dispatcher Control")."""


class Accelerator(StrEnum):
    """What a rank computes on."""

    CUDA = "cuda"
    CPU = "cpu"


class Machine(Spec):
    """The nodes that trials run on, all alike. Sizes are those of one node; None is unknown."""

    accelerator: Accelerator
    num_nodes: Positive = 1
    num_gpus: Count = 0
    """GPUs of one node that trials may use."""
    gpu_names: tuple[str, ...] = ()
    device_memory_bytes: int | None = None
    """Memory of the smallest GPU."""
    host_memory_bytes: int | None = None
    """Memory of one node that trials may use; a control group's limit counts."""
    cpu_cores: Positive = 1
    supports_bf16: bool = True
    bf16_slowdown: float | None = 1.0
    """How many times longer the processor takes for a product in bf16 than in fp32; None where nobody has tried it."""
    supports_fp16: bool = True
    """Whether DeepSpeed takes fp16 on the device; on CPUs only with native fp16 instructions."""
    has_libaio: bool = True
    """Whether DeepSpeed's asynchronous I/O, which NVMe offload needs, is there or can be built."""
    missing_kernels: tuple[str, ...] = ()
    """Kernels of DeepSpeed's optimizers that are not there and cannot be built."""
    has_flash_attention: bool = False
    """Whether the package flash_attn is installed."""
    has_liger: bool = False
    """Whether the package liger_kernel is installed."""
    has_inductor: bool = True
    """Whether torch.compile finds the compilers that it generates code for."""
    has_rpc: bool = True
    """Whether torch has torch.distributed.rpc."""
    has_tpu: bool = False
    """Whether a TPU is named or attached there (zerobench.spec.tpu)."""
    missing_packages: tuple[str, ...] = ()
    """Packages of strategies that are not installed there; none where nobody knows."""
    missing_environments: tuple[str, ...] = ()
    """Environments of their own that some strategies need and nobody made there; none where nobody knows."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks on one node that `auto` means: one a GPU, or two without any."""
        return self.num_gpus if self.accelerator is Accelerator.CUDA else DEFAULT_CPU_RANKS

    @property
    def most_ranks_per_node(self) -> int:
        """Ranks that are started on one node at most: one a GPU, or a few a core."""
        return self.num_gpus if self.accelerator is Accelerator.CUDA else CPU_RANKS_PER_CORE * self.cpu_cores


class Device(Protocol):
    """What is asked of each GPU in a listing (zerobench.memory.nvml.DeviceInfo has it)."""

    @property
    def uuid(self) -> str:
        """As the driver writes it, `GPU-...`."""

    @property
    def name(self) -> str:
        """The product's name."""

    @property
    def total_bytes(self) -> int | None:
        """All of its memory."""


def detect_machine(num_nodes: int = 1, devices: Sequence[Device] | None = None) -> Machine:
    """The machine we are on, one of `num_nodes` alike; `devices` are its GPUs, by default those the driver lists."""
    gpus = visible_devices(_listed() if devices is None else devices, os.environ)
    on_cuda = bool(gpus) and torch_has_cuda() and os.environ.get("DS_ACCELERATOR") != "cpu"
    gpus = gpus if on_cuda else []
    buildable = can_build_ops(for_cuda=on_cuda)
    return Machine(
        accelerator=Accelerator.CUDA if on_cuda else Accelerator.CPU,
        num_nodes=num_nodes,
        num_gpus=len(gpus),
        gpu_names=tuple(gpu.name for gpu in gpus),
        device_memory_bytes=_smallest(gpus),
        host_memory_bytes=host_memory_bytes(),
        cpu_cores=len(os.sched_getaffinity(0)),
        bf16_slowdown=None,
        supports_fp16=on_cuda or cpu_supports_fp16(),
        has_libaio=op_is_built("async_io") or (buildable and has_libaio()),
        missing_kernels=() if buildable else tuple(name for name in optimizer_kernels() if not op_is_built(name)),
        has_flash_attention=package_folder("flash_attn") is not None,
        has_liger=package_folder("liger_kernel") is not None,
        has_inductor=can_compile_graphs(for_cuda=on_cuda),
        has_rpc=torch_has_rpc(),
        has_tpu=tpu.may_answer(os.environ),
        missing_packages=tuple(name for name in strategy_packages() if package_folder(name) is None),
        missing_environments=missing_environments(),
    )


def visible_devices(devices: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, by index or UUID, up to the first name that is none.

    CUDA C++ Programming Guide, "CUDA Environment Variables". Only how many matters here, not which: CUDA's order
    may differ from the driver's.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return list(devices)
    chosen: list[Device] = []
    for name in map(str.strip, value.split(",")):
        device = _named(name, devices)
        if device is None or device in chosen:
            break
        chosen.append(device)
    return chosen


def cpu_supports_fp16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether DeepSpeed takes fp16 on this CPU: x86-64 with AVX512-FP16 or AVX-NE-CONVERT.

    deepspeed/accelerator/cpu_accelerator.py, is_fp16_supported, asks torch.ops.mkldnn._is_mkldnn_fp16_supported,
    which asks oneDNN for these two (ATen/native/mkldnn/Utils.h; cpu_isa avx512_core_fp16 and avx2_vnni_2) and
    says no elsewhere.
    """
    if platform.machine() not in {"x86_64", "AMD64"} or os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper() in _NO_FP16:
        return False
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not {"avx512_fp16", "avx_ne_convert"}.isdisjoint(flags)


def _listed() -> Sequence[Device]:
    # The driver's binding is loaded only where it is asked.
    from zerobench.memory.nvml import list_devices  # noqa: PLC0415

    return list_devices().devices


def _named(name: str, devices: Sequence[Device]) -> Device | None:
    if name.isdecimal():
        return devices[int(name)] if int(name) < len(devices) else None
    return next((device for device in devices if name and device.uuid.startswith(name)), None)


def _smallest(gpus: Sequence[Device]) -> int | None:
    sizes = [gpu.total_bytes for gpu in gpus]
    return min((size for size in sizes if size is not None), default=None)
