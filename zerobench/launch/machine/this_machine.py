"""The current machine as sweep rules see it, detected without torch, whose import takes seconds and device memory.

The speed of bf16 on its processor is measured by torch, in a separate process: the runner imports no torch.
"""

import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerobench.common.control_groups import host_memory_bytes
from zerobench.common.environments import missing_environments
from zerobench.common.errors import UserError
from zerobench.common.training_python import training_python
from zerobench.common.training_variables import training_variables
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.derived.strategy import strategy_packages
from zerobench.config.hardware import tpu
from zerobench.config.hardware.hardware import device_capacity_bytes
from zerobench.config.hardware.toolchain import (
    can_build_ops,
    can_compile_graphs,
    has_libaio,
    op_is_built,
    package_folder,
    torch_has_cuda,
    torch_has_rpc,
)
from zerobench.config.sweep.precision import needs_bf16_speed
from zerobench.config.sweep.sweep import Sweep
from zerobench.config.trial.optimizers import optimizer_kernels
from zerobench.rank.nvml.nvml import DeviceInfo, list_devices

PATIENCE_S = 300.0
"""Seconds. Importing torch takes two on an idle machine, and a minute on one that swaps."""


def measure_arithmetic(machine: Machine, sweep: Sweep) -> Machine:
    """Return `machine`, which is this one, with the measurements that `sweep` needs.

    Raises UserError if torch does not answer.
    """
    if package_folder("torch") is None or not needs_bf16_speed(sweep, machine):
        return machine
    return machine.model_copy(update={"bf16_slowdown": bf16_slowdown()})


def bf16_slowdown() -> float:
    """Return the time of a bf16 product on this CPU divided by that in fp32 (zerobench.rank.loop.probe_bf16).

    Raises UserError if torch does not answer.
    """
    command = [str(training_python().python), "-m", "zerobench.rank.loop.probe_bf16"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **training_variables()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        slowdown = float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        message = (
            str(error) if isinstance(error, subprocess.TimeoutExpired) else getattr(error, "stderr", None) or str(error)
        )
        last = message.strip().splitlines()[-1] if message.strip() else "no output"
        raise UserError(
            f"precision: auto: this processor's bf16 speed could not be measured ({last}); choices: --set "
            "precision=fp32, --set precision=bf16"
        ) from None
    return slowdown if math.isfinite(slowdown) else 1.0


_NO_FP16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16"}
"""Values of ONEDNN_MAX_CPU_ISA that turn oneDNN's fp16 instructions off (oneDNN, "CPU Dispatcher Control")."""


def detect_machine(num_nodes: int = 1, devices: Sequence[DeviceInfo] | None = None) -> Machine:
    """Detect this machine, one of `num_nodes` equal nodes. `devices`: its GPUs, by default the driver's list."""
    gpus = visible_devices(list_devices().devices if devices is None else devices, os.environ)
    on_cuda = bool(gpus) and torch_has_cuda() and os.environ.get("DS_ACCELERATOR") != "cpu"
    gpus = gpus if on_cuda else []
    buildable = can_build_ops(for_cuda=on_cuda)
    return Machine(
        accelerator=Accelerator.CUDA if on_cuda else Accelerator.CPU,
        num_nodes=num_nodes,
        num_gpus=len(gpus),
        gpu_names=tuple(gpu.name for gpu in gpus),
        device_memory_bytes=min(
            (device_capacity_bytes(gpu.name, gpu.total_bytes) for gpu in gpus if gpu.total_bytes is not None),
            default=None,
        ),
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


def visible_devices(devices: Sequence[DeviceInfo], environ: Mapping[str, str]) -> list[DeviceInfo]:
    """Return the devices that CUDA_VISIBLE_DEVICES selects, by index or UUID, up to the first invalid name.

    CUDA C++ Programming Guide, "CUDA Environment Variables". Only their number matters here: CUDA's order may differ
    from the driver's.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return list(devices)
    chosen: list[DeviceInfo] = []
    for name in map(str.strip, value.split(",")):
        device = _named(name, devices)
        if device is None or device in chosen:
            break
        chosen.append(device)
    return chosen


def cpu_supports_fp16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if DeepSpeed takes fp16 on this CPU: x86-64 with AVX512-FP16 or AVX-NE-CONVERT.

    deepspeed/accelerator/cpu_accelerator.py, is_fp16_supported, calls torch.ops.mkldnn._is_mkldnn_fp16_supported, which
    asks oneDNN for these two (ATen/native/mkldnn/Utils.h; cpu_isa avx512_core_fp16 and avx2_vnni_2) and is False
    elsewhere.
    """
    if platform.machine() not in {"x86_64", "AMD64"} or os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper() in _NO_FP16:
        return False
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not {"avx512_fp16", "avx_ne_convert"}.isdisjoint(flags)


def _named(name: str, devices: Sequence[DeviceInfo]) -> DeviceInfo | None:
    if name.isdecimal():
        return devices[int(name)] if int(name) < len(devices) else None
    return next((device for device in devices if name and device.uuid.startswith(name)), None)
