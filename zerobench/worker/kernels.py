"""DeepSpeed's C++ kernels: which ones a trial needs, and whether they must be compiled first (minutes each)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from zerobench.memory.device import Device


def needed(ds_config: dict[str, Any], device: Device) -> list[str]:
    """Names of the kernels, as under torch's extension cache (deepspeed/ops/op_builder)."""
    zero = ds_config.get("zero_optimization", {})
    offload = zero.get("offload_optimizer", {}).get("device", "none")
    on_nvme = "nvme" in {offload, zero.get("offload_param", {}).get("device", "none")}
    optimizer = ds_config.get("optimizer", {})
    is_adam = str(optimizer.get("type", "")).lower() in {"adam", "adamw"}
    plain = bool(optimizer.get("params", {}).get("torch_adam", False))
    names = []
    if ds_config and not device.is_cuda:
        names.append("deepspeed_shm_comm")  # comm/torch.py loads it on every CPU run, alone or not
    if is_adam and not plain:
        names.append("cpu_adam" if offload != "none" else "fused_adam")
    if on_nvme:
        names.append("async_io")
    if zero.get("zero_quantized_weights") or zero.get("zero_quantized_gradients"):
        names.append("quantizer")
    return names


def missing(names: list[str]) -> list[str]:
    """Those of `names` that no earlier run has compiled into torch's extension cache."""
    roots = [Path(os.environ["TORCH_EXTENSIONS_DIR"])] if "TORCH_EXTENSIONS_DIR" in os.environ else []
    roots += [*Path("~/.cache/torch_extensions").expanduser().glob("*")]
    return [name for name in names if not any((root / name / f"{name}.so").exists() for root in roots)]
