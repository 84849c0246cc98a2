"""What a DeepSpeed configuration amounts to: values with DeepSpeed's defaults, and the choices it makes from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerobench.ds_config.keys import default
from zerobench.errors import UserError
from zerobench.spec.trial import Offload, Optimizer, Precision


def get(config: Mapping[str, Any], path: str) -> Any:
    """The value at the full dotted `path`, or DeepSpeed's default."""
    section: Any = config
    for name in path.split("."):
        if not isinstance(section, Mapping) or name not in section:
            return default(path)
        section = section[name]
    return section


def device_of(config: Mapping[str, Any], section: str) -> str:
    """Where `offload_optimizer` or `offload_param` puts its states: none, cpu or nvme."""
    return str(get(config, f"zero_optimization.{section}.device"))


def zeropp_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the configuration says of ZeRO++, by the axes of a trial; a group of one rank, and `auto`, is none."""
    size = get(config, "zero_optimization.zero_hpz_partition_size")
    switches = ("quantized_weights", "quantized_gradients")
    found = {axis: get(config, f"zero_optimization.zero_{axis}") is True for axis in switches}
    return {"hpz_partition_size": size if isinstance(size, int) and size > 1 else None, **found}


def precision_of(config: Mapping[str, Any]) -> str:
    """fp32, bf16 or fp16, as DeepSpeed reads the sections (runtime/engine.py, get_data_types)."""
    enabled = [kind for kind in (Precision.FP16, Precision.BF16) if get(config, f"{kind}.enabled")]
    return " and ".join(enabled) or Precision.FP32.value


def optimizer_of(config: Mapping[str, Any], where: str = "ds_config") -> Optimizer:
    """The optimizer that DeepSpeed makes of the configuration (runtime/engine.py, _configure_basic_optimizer).

    Raises UserError for one that no trial can ask for.
    """
    kind = get(config, "optimizer.type")
    params = get(config, "optimizer.params") or {}
    if kind == "SGD":
        return Optimizer.SGD
    if str(kind).lower() not in {"adam", "adamw"}:
        raise UserError(f"{where}: optimizer.type: {kind!r} has no counterpart here; choices: AdamW, Adam, SGD")
    if str(kind).lower() == "adam" and not params.get("adam_w_mode", True):
        raise UserError(
            f"{where}: optimizer: Adam with adam_w_mode: false has no counterpart here; choices: AdamW, SGD"
        )
    if params.get("torch_adam", False):
        return Optimizer.ADAMW
    offloaded = device_of(config, "offload_optimizer") != Offload.NONE.value
    return Optimizer.CPU_ADAM if offloaded else Optimizer.FUSED_ADAMW
