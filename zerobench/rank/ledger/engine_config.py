"""Facts read off a built engine: releases in use, configuration with every default, and the model's parameters."""

from __future__ import annotations

import sys
from typing import Any

import torch

from zerobench.config.trial.backward import Weight
from zerobench.rank.ledger.components import components_of
from zerobench.records.records import ParameterTensor

_IMPORTED = ("torch", "deepspeed", "transformers")
"""Packages that count as soon as they are imported."""


def acting_versions(model: torch.nn.Module | None = None) -> dict[str, str]:
    """Versions, by package, of the releases that the memory of this process depends on.

    PEFT counts if a module of `model` is PEFT's. transformers imports accelerate by itself, so accelerate counts only
    after Accelerator or Trainer has created their shared PartialState.
    """
    acting = [name for name in _IMPORTED if name in sys.modules]
    if model is not None and any(type(module).__module__.startswith("peft.") for module in model.modules()):
        acting.append("peft")
    if getattr(getattr(sys.modules.get("accelerate.state"), "PartialState", None), "_shared_state", None):
        acting.append("accelerate")
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in acting}
    return {name: str(version) for name, version in versions.items() if version is not None}


_SECTIONS = {
    "bf16": "bfloat16_config",
    "fp16": "float16_config",
    "timers": "timers_config",
    "aio": "aio_config",
    "checkpoint": "checkpoint_config",
}
"""Sections of a configuration, and the attribute under which DeepSpeed keeps each after parsing."""

_VALUES = (
    "disable_python_gc",
    "gradient_allreduce_op",
    "gradient_predivide_factor",
    "prescale_gradients",
    "grad_accum_dtype",
    "buffer_dtype",
    "keep_in_fp32_modules",
    "optimizer_params",
)


def parsed_config(parsed: Any) -> dict[str, Any]:
    """The parts of a parsed DeepSpeed configuration that a trial may set, with every default filled in."""
    tensor_parallel = getattr(parsed, "tensor_parallel_config", None)
    sections: dict[str, Any] = {name: getattr(parsed, attribute, None) for name, attribute in _SECTIONS.items()}
    return {
        "zero_optimization": parsed.zero_config.model_dump(mode="json"),
        "communication_data_type": str(parsed.communication_data_type),
        "tensor_parallel": {name: getattr(tensor_parallel, name, None) for name in ("autotp_size", "tp_overlap_comm")},
        **{name: s.model_dump(mode="json") if hasattr(s, "model_dump") else s for name, s in sections.items()},
        **{name: getattr(parsed, name, None) for name in _VALUES},
    }


def engine_config(engine: Any) -> dict[str, Any]:
    """DeepSpeed's config with every default filled in, and the classes it chose."""
    inner = getattr(engine.optimizer, "optimizer", None)
    return {
        **parsed_config(engine._config),
        "train_batch_size": engine.train_batch_size(),
        "train_micro_batch_size_per_gpu": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "gradient_clipping": engine.gradient_clipping(),
        "communication_data_type": str(engine.communication_data_type),
        "bf16_enabled": engine.bfloat16_enabled(),
        "fp16_enabled": engine.fp16_enabled(),
        "engine_optimizer": type(engine.optimizer).__name__,
        "optimizer": type(inner if inner is not None else engine.optimizer).__name__,
    }


def count_parameters_built(model: torch.nn.Module) -> ParameterTensor:
    """Exact parameter counts of the model as built; partitioned parameters count with their full size.

    The full size is ds_numel under ZeRO-3 and a DTensor's own numel; AutoTP marks the parameters it cut into equal
    parts.
    """
    by_component: dict[str, int] = {}
    total = trainable = 0
    for weight in weights_built(model):
        by_component[weight.component] = by_component.get(weight.component, 0) + weight.size
        total += weight.size
        trainable += weight.size if weight.is_trained else 0
    return ParameterTensor(total=total, trainable=trainable, by_component=by_component)


def weights_built(model: torch.nn.Module) -> list[Weight]:
    """The model's parameters in their order, tied ones once, each with its full size."""
    components = components_of(model)
    return [
        Weight(
            name,
            _elements(model, name, parameter) * _autotp_parts(parameter),
            is_trained=parameter.requires_grad,
            component=components[name],
        )
        for name, parameter in model.named_parameters()
    ]


def _elements(model: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> int:
    """Elements of the whole tensor; for a quantised one, those that its codes encode (rank/training/quantised.py)."""
    module, _, last = name.rpartition(".")
    quantised = getattr(model.get_submodule(module), "weight_elements", None) if last == "weight" else None
    if isinstance(quantised, int):
        return quantised
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _autotp_parts(parameter: torch.nn.Parameter) -> int:
    """Number of ranks that share a parameter (deepspeed/module_inject/layers.py, DS_TENSOR_MODEL_PARALLEL)."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return 1
    from deepspeed.utils import groups

    return int(groups.get_tensor_model_parallel_world_size())
