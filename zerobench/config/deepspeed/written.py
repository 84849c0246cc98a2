"""Writes the DeepSpeed JSON of a plan as users would write it by hand, without the benchmark's own keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerobench.config.deepspeed.build import build_ds_config
from zerobench.config.deepspeed.check import AUTO
from zerobench.config.trial.optimizers import TORCH_NAMES
from zerobench.config.trial.trial import Precision, TrialSpec

_BENCHMARK_KEYS = ("steps_per_print", "wall_clock_breakdown", "memory_breakdown")
_BY_TRAINER = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
"""Filled in by transformers' Trainer if `auto` (integrations/deepspeed.py, trainer_config_process)."""


def written_config(trial: TrialSpec, *, for_trainer: bool = False) -> dict[str, Any]:
    """Configuration to train `trial` with; `for_trainer`: values from TrainingArguments are `auto`.

    A user's own file stays as it is. Raises UserError where `build_ds_config` does.
    """
    built = build_ds_config(trial)
    if trial.ds_config_file is not None:
        return built
    config = {key: value for key, value in built.items() if key not in _BENCHMARK_KEYS}
    if trial.zero_stage == 3:  # else save_pretrained has shards alone to write
        config["zero_optimization"] = config["zero_optimization"] | {"stage3_gather_16bit_weights_on_model_save": True}
    return _trainer_config(config) if for_trainer else config


def _trainer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    auto = dict.fromkeys(_BY_TRAINER, AUTO)
    auto |= {name: config[name] | {"enabled": AUTO} for name in ("bf16", "fp16") if name in config}
    if "optimizer" in config:
        params = config["optimizer"]["params"]
        filled = {name: AUTO if name in TORCH_NAMES else value for name, value in params.items()}
        auto["optimizer"] = config["optimizer"] | {"params": filled}
    return dict(config) | auto


def training_arguments(trial: TrialSpec) -> str:
    """Arguments of transformers.TrainingArguments that fill in the `auto` of `written_config`."""
    values = trial.hyperparameters
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": trial.micro_batch_size,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "learning_rate": values.learning_rate,
        "weight_decay": values.weight_decay,
        "adam_beta2": values.adam_beta2,
        "max_grad_norm": values.gradient_clipping,
    }
    if trial.precision is not Precision.FP32:
        arguments[trial.precision.value] = True
    if trial.activation_checkpointing is True:
        arguments["gradient_checkpointing"] = True
    return ", ".join(f"{name}={value}" for name, value in arguments.items())
