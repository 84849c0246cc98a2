"""Reads a DeepSpeed configuration: values with DeepSpeed's defaults, and the choices that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.deepspeed.keys import default
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer, OptimizerInfo
from zerobench.config.trial.trial import Offload, Precision


def get(config: Mapping[str, Any], path: str) -> Any:
    """The value at the full dotted `path`, or DeepSpeed's default."""
    section: Any = config
    for name in path.split("."):
        if not isinstance(section, Mapping) or name not in section:
            return default(path)
        section = section[name]
    return section


def device_of(config: Mapping[str, Any], section: str) -> str:
    """Device of the states of `offload_optimizer` or `offload_param`: none, cpu or nvme."""
    return str(get(config, f"zero_optimization.{section}.device"))


MIN_AIO_BYTES = 2**20
"""DeepSpeed's lower limit for swapped tensors (swap_tensor/utils.py, MIN_AIO_BYTES)."""


def smallest_swapped_bytes(config: Mapping[str, Any]) -> int:
    """Smaller tensors stay in memory."""
    return max(MIN_AIO_BYTES, int(get(config, "aio.block_size")))


def zeropp_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the trial's ZeRO++ axes in the configuration; a group of one rank, or `auto`, is none."""
    size = get(config, "zero_optimization.zero_hpz_partition_size")
    switches = ("quantized_weights", "quantized_gradients")
    switched = {axis: get(config, f"zero_optimization.zero_{axis}") is True for axis in switches}
    return {"hpz_partition_size": size if isinstance(size, int) and size > 1 else None, **switched}


def precision_of(config: Mapping[str, Any]) -> str:
    """fp32, bf16 or fp16, as DeepSpeed reads the sections (runtime/engine.py, get_data_types)."""
    enabled = [kind for kind in (Precision.FP16, Precision.BF16) if get(config, f"{kind}.enabled")]
    return " and ".join(enabled) or Precision.FP32.value


ELEMENT_BYTES = {"fp32": 4, "float32": 4, "float": 4, "fp16": 2, "float16": 2, "half": 2, "bf16": 2, "bfloat16": 2}
"""DeepSpeed's names of data types (runtime/config.py, DtypeEnum)."""


def becomes_bf16_optimizer(stage: int | None, *, is_bf16: bool, accumulates_in: Any, offload: Offload) -> bool:
    """Return whether BF16_Optimizer runs (runtime/engine.py, _do_optimizer_sanity_check).

    It does at stage 1 in bf16 with gradients accumulated in fp32 and not offloaded, and in bf16 in a pipeline (`stage`
    None).
    """
    if stage is None:
        return is_bf16
    in_fp32 = ELEMENT_BYTES.get(str(accumulates_in), 2) == 4
    return stage == 1 and is_bf16 and in_fp32 and offload is not Offload.CPU


def made_by(config: Mapping[str, Any]) -> OptimizerInfo | None:
    """Optimizer that DeepSpeed makes from its section (runtime/engine.py, _configure_basic_optimizer); None if unknown
    here.
    """
    kind, params = get(config, "optimizer.type"), get(config, "optimizer.params") or {}
    offloaded = device_of(config, "offload_optimizer") != Offload.NONE.value
    is_plain = bool(params.get("torch_adam", False))
    for info in OPTIMIZERS.values():
        ours = info.deepspeed
        if ours is None or not ours.is_named(kind) or not info.can_place(offloaded=offloaded):
            continue
        if bool(ours.settings.get("torch_adam", False)) == is_plain:
            return info
    return None


def optimizer_of(config: Mapping[str, Any], where: str = "ds_config") -> Optimizer:
    """Optimizer that DeepSpeed makes from the configuration.

    Raises UserError for one that no trial can have.
    """
    kind = get(config, "optimizer.type")
    params = get(config, "optimizer.params") or {}
    info = made_by(config)
    if info is None:
        named = (optimizer.deepspeed.types for optimizer in OPTIMIZERS.values() if optimizer.deepspeed is not None)
        known = dict.fromkeys(name for types in named for name in types)
        raise UserError(f"{where}: optimizer.type: {kind!r} has no counterpart here; choices: {', '.join(known)}")
    if str(kind).lower() == "adam" and not params.get("adam_w_mode", True):
        raise UserError(
            f"{where}: optimizer: Adam with adam_w_mode: false has no counterpart here; choices: AdamW, SGD"
        )
    return info.name
