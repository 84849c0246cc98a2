"""Builds the DeepSpeed JSON of a trial, a pure function of the trial (and of the user's file that it names)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.deepspeed.case import Case
from zerobench.config.deepspeed.check import check_ds_config, check_overrides
from zerobench.config.deepspeed.keys import default, find
from zerobench.config.deepspeed.reading import device_of, get, optimizer_of, precision_of, zeropp_of
from zerobench.config.deepspeed.user_file import complete_user_config
from zerobench.config.derived.batch import AUTOTP_SIZE, autotp_size, micro_batches_of_share
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.optimizers import OPTIMIZERS, StatesPlace
from zerobench.config.trial.trial import OFFLOADS, Compile, Offload, Precision, TrialSpec

_NEVER = 1_000_000_000
"""Steps between two of DeepSpeed's progress lines."""


def build_ds_config(trial: TrialSpec) -> dict[str, Any]:
    """Build the DeepSpeed configuration of `trial`: generated, or the user's own file with its gaps filled, then the
    trial's overrides.

    Raises UserError for a strategy without DeepSpeed, an optimizer that cannot run where its states are, unknown keys,
    and a file or an override that contradicts the trial.
    """
    config = _generated(trial)
    if trial.ds_config_file is not None:
        config = complete_user_config(trial, config)
    for path, value in check_overrides(trial.ds_config).items():
        _lay(config, path, value)
    config = _drop_null_sections(config, "")
    swap_to(config, trial.nvme_path)
    where = trial.ds_config_file or "ds_config"
    check_ds_config(config, where)
    refuse_conflicts(config, trial, where)
    _lay(config, "zero_optimization.stage", trial.zero_stage or 0)  # a file for stage 0 may leave it out
    return config


def replaces_linear(trial: TrialSpec) -> bool:
    """Return whether DeepSpeed's linear layer replaces torch's, by the trial's keys and the user's file.

    True, the default, where there is no valid configuration: that is refused elsewhere.
    """
    if trial.zero_stage != 3:
        return False
    try:
        config = build_ds_config(trial)
    except UserError:
        return True
    return Case(config, trial.world_size, 0).replaces_linear


def batch_keys(trial: TrialSpec) -> dict[str, int]:
    """DeepSpeed's keys for the batch."""
    return {
        # For this product DeepSpeed takes every rank for a data-parallel one (runtime/config.py, DeepSpeedConfig).
        "train_batch_size": trial.global_batch_size * autotp_size(trial),
        "train_micro_batch_size_per_gpu": trial.micro_batch_size,
        "gradient_accumulation_steps": micro_batches_of_share(trial),
    }


def _generated(trial: TrialSpec) -> dict[str, Any]:
    if not uses_deepspeed(trial):
        raise UserError(f"strategy: {trial.strategy!r} has no DeepSpeed configuration")
    config: dict[str, Any] = {
        **batch_keys(trial),
        "gradient_clipping": trial.hyperparameters.gradient_clipping,
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
        "memory_breakdown": False,
        **_precision(trial.precision),
        **_optimizer(trial),
        "zero_optimization": _zero(trial),
    }
    config |= _untested(trial)
    if trial.compile is Compile.MODEL:
        # A compiled engine's throughput timer calls torch.cuda.synchronize(None) within the compiled forward pass from
        # the third step on, at which Dynamo of torch 2.12 and 2.13 fails (_dynamo/variables/torch.py,
        # handle_synchronize).
        config["timers"] = {"throughput": {"synchronized": False}}
    return config


def _untested(trial: TrialSpec) -> dict[str, Any]:
    """Let ZeRO accept an optimizer that it does not know (runtime/engine.py, _configure_optimizer)."""
    known = OPTIMIZERS[trial.optimizer].deepspeed
    if not trial.zero_stage or (known is not None and known.is_tested):
        return {}
    is_handed_offloaded = known is None and trial.offload_optimizer is not Offload.NONE
    forced = {"zero_force_ds_cpu_optimizer": False} if is_handed_offloaded else {}
    return {"zero_allow_untested_optimizer": True} | forced


def _precision(precision: Precision) -> dict[str, Any]:
    # Loss scaling of fp16 is written out: it decides which of the first steps are skipped
    if precision is Precision.BF16:
        return {"bf16": {"enabled": True}}
    if precision is Precision.FP32:
        return {}
    return {
        "fp16": {
            "enabled": True,
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "consecutive_hysteresis": False,
            "min_loss_scale": 1,
        }
    }


def _optimizer(trial: TrialSpec) -> dict[str, Any]:
    """Section from which DeepSpeed makes the trial's optimizer (runtime/engine.py, _configure_basic_optimizer).

    AdamW without `torch_adam` is DeepSpeedCPUAdam if its states are offloaded, else FusedAdam; a name that DeepSpeed
    does not know is looked up in torch.optim, by its exact case. Empty if DeepSpeed has no such optimizer: it is passed
    one. Raises UserError.
    """
    info = OPTIMIZERS[trial.optimizer]
    if info.deepspeed is None:
        return {}
    offloaded = trial.offload_optimizer is not Offload.NONE
    if not info.can_place(offloaded=offloaded):
        where = "host" if info.place is StatesPlace.HOST else "device"
        raise UserError(
            f"optimizer: {info.name} runs on the {where}, but offload_optimizer is "
            f"{trial.offload_optimizer}; choices: {', '.join(info.instead)}"
        )
    params = trial.hyperparameters.torch_values(*info.deepspeed.hyperparameters) | info.deepspeed.settings
    return {"optimizer": {"type": info.deepspeed.type, "params": params}}


def _zero(trial: TrialSpec) -> dict[str, Any]:
    section: dict[str, Any] = {"stage": trial.zero_stage or 0}
    optimizer = OPTIMIZERS[trial.optimizer].deepspeed
    if trial.zero_stage == 3 and optimizer is not None:
        section |= optimizer.stage_3_settings
    if trial.offload_optimizer is not Offload.NONE:
        section["offload_optimizer"] = _offload(trial.offload_optimizer)
    if trial.offload_param is not Offload.NONE:
        section["offload_param"] = _offload(trial.offload_param) | _param_buffers(trial)
    if trial.offload_param is Offload.NVME:
        section["stage3_max_reuse_distance"] = 0  # what is kept gathered keeps its buffer, of which there are five
    zeropp = {  # runtime/zero/config.py
        "zero_hpz_partition_size": trial.hpz_partition_size,
        "zero_quantized_weights": trial.quantized_weights,
        "zero_quantized_gradients": trial.quantized_gradients,
    }
    return section | {key: value for key, value in zeropp.items() if value}


def _offload(place: Offload) -> dict[str, Any]:
    # Pinning is written out though it is DeepSpeed's default; on the CPU accelerator it only affects the buffers of
    # NVMe swapping (accelerator/cpu_accelerator.py, pin_memory)
    return {"device": place.value, "pin_memory": True}


def _param_buffers(trial: TrialSpec) -> dict[str, Any]:
    # Size the buffers for the largest parameter's partition, and keep none in host memory. By default DeepSpeed keeps
    # up to `max_in_cpu` elements per rank in host memory, which is all of a small model (stage3.py,
    # _create_param_groups_fp16_flat_cpu_memory), and its buffers are too small for the embedding of a large one
    # (partitioned_param_swapper.py, an assertion).
    if trial.offload_param is not Offload.NVME:
        return {}
    buffers = {"max_in_cpu": 0}
    sizes = dimensions(trial.model)
    largest = -(-(sizes.vocab_size or 0) * (sizes.hidden_size or 0) // trial.world_size)
    if largest > default("zero_optimization.offload_param.buffer_size"):
        buffers["buffer_size"] = largest
    return buffers


def swap_to(config: dict[str, Any], folder: str | None) -> None:
    """Set the swap folder to the trial's path, which takes precedence over the file's: it depends on the machine.

    Raises UserError if states are swapped and there is no folder.
    """
    for name in ("offload_optimizer", "offload_param"):
        section = config.get("zero_optimization", {}).get(name)
        if isinstance(section, dict) and section.get("device") == Offload.NVME.value:
            if folder is None:
                raise UserError(f"nvme_path: missing, but {name} is nvme; give a folder on the NVMe device")
            section["nvme_path"] = folder


def _drop_null_sections(section: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Drop sections that are null: DeepSpeed ignores some of them and fails at others."""
    sections = {}
    for name, value in section.items():
        key = find(f"{prefix}{name}")
        if isinstance(value, dict):
            sections[name] = _drop_null_sections(value, f"{prefix}{name}.")
        elif value is not None or key is None or key.type not in {"section", "free"}:
            sections[name] = value
    return sections


def _lay(config: dict[str, Any], path: str, value: Any) -> None:
    """Set the key at the dotted `path`, creating the sections above it."""
    section = config
    *above, last = path.split(".")
    for name in above:
        inner = section.get(name)
        section[name] = inner if isinstance(inner, dict) else {}
        section = section[name]
    section[last] = value


def refuse_conflicts(config: Mapping[str, Any], trial: TrialSpec, where: str) -> None:
    """Raise UserError, naming both sides, if `config` contradicts `trial` or disturbs the measurement."""
    for key, theirs, field, ours in _facts(config, trial, where):
        if theirs != ours:
            raise UserError(f"{where}: {key} is {theirs!r}, but the trial's {field} is {ours!r}; make them equal")
    if get(config, "memory_breakdown"):
        # runtime/utils.py, see_memory_usage: it resets the peak counters.
        raise UserError(f"{where}: memory_breakdown: true resets the peaks that are measured here; leave it false")


def _facts(config: Mapping[str, Any], trial: TrialSpec, where: str) -> Iterator[tuple[str, Any, str, Any]]:
    """Facts in both: DeepSpeed's key, its value, the trial's field, its value."""
    yield "zero_optimization.stage", get(config, "zero_optimization.stage"), "zero_stage", trial.zero_stage or 0
    cut = autotp_size(trial)
    for key, field, ours in (
        ("train_micro_batch_size_per_gpu", "micro_batch_size", trial.micro_batch_size),
        ("gradient_accumulation_steps", "gradient_accumulation_steps", micro_batches_of_share(trial)),
        ("train_batch_size", "global_batch_size", trial.global_batch_size * cut),
        (AUTOTP_SIZE, f"ds_config.{AUTOTP_SIZE}", cut),
    ):
        theirs = get(config, key)
        yield key, max(1, theirs or 1) if key == AUTOTP_SIZE else theirs, field, ours
    for axis, theirs in zeropp_of(config).items():
        yield f"zero_{axis}", theirs, axis, getattr(trial, axis)
    clipping = trial.hyperparameters.gradient_clipping
    yield "gradient_clipping", get(config, "gradient_clipping"), "hyperparameters.gradient_clipping", clipping
    yield "the precision of its bf16 and fp16 sections", precision_of(config), "precision", trial.precision.value
    for section in OFFLOADS:
        yield f"{section}.device", device_of(config, section), section, getattr(trial, section).value
    is_handed = OPTIMIZERS[trial.optimizer].deepspeed is None and get(config, "optimizer.type") is None
    optimizer = trial.optimizer if is_handed else optimizer_of(config, where)
    yield "the optimizer it makes", optimizer.value, "optimizer", trial.optimizer.value
