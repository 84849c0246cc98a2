"""A user's own work as a trial: read from the engine, or unknown; nothing is guessed.

A trial has a model, a batch, a precision. For a script without a tracker they are unknown; for a tracked engine most
are known: the ZeRO stage, offloads, batch and precision are the engine's, the model's shape is its config.

Its run folder is an ordinary one with this single trial, so that every report reads it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from zerobench.common.redaction import MARK, is_secret_name, redact_text
from zerobench.config.axes.axes import axes_known
from zerobench.config.axes.axis import Visibility
from zerobench.config.deepspeed.user_file import leaves
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer
from zerobench.config.trial.trial import (
    SCRIPT,
    Attention,
    Offload,
    OwnScript,
    Precision,
    StepsSpec,
    TrialSpec,
)
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.run.setup import new_run_folder
from zerobench.records.folder import TRIAL_VARIABLE, RunFolder, TrialFolder, write_whole, writing
from zerobench.records.store import Plan, PlanEntry

LEDGER_ALONE = (
    "written after the memory steps: the training ended silently after them or is still running; no timed steps"
)
"""Note of records that were not replaced by final ones."""


def lay_out_own_run(reports: Path, trial: TrialSpec, asked: Mapping[str, Any], command: Sequence[str]) -> RunFolder:
    """Make a run folder under `reports` with the single trial `trial`; the plan goes last, which makes it a run.

    `asked` is the user's request and `command` the command line, both without secrets.

    Raises UserError if it cannot be written.
    """
    with writing(f"reports: {reports}"):
        run = new_run_folder(reports, trial.trial_id)
        folder = run.trial(trial.trial_id)
        folder.path.mkdir(parents=True)
        write_whole(run.sweep, yaml.safe_dump(dict(asked), sort_keys=False, allow_unicode=True))
        write_whole(run.environment, json.dumps(capture_environment(), indent=1))
        write_whole(folder.spec, trial.model_dump_json(indent=1))
        write_whole(folder.command, "".join(f"{_one_line(word)}\n" for word in command))
        plan = Plan(run_id=run.run_id, trials=[PlanEntry(trial_id=trial.trial_id)])
        write_whole(run.plan, plan.model_dump_json(indent=1))
    return run


def watched_folder() -> TrialFolder | None:
    """Return the folder made by a watcher around this process; None without one."""
    value = os.environ.get(TRIAL_VARIABLE)
    if not value:
        return None
    folder = TrialFolder(Path(value))
    try:
        trial = TrialSpec.model_validate_json(folder.spec.read_bytes())
    except (OSError, ValueError):
        return None
    return folder if trial.own is not None else None


def run_of(folder: TrialFolder) -> RunFolder:
    """Return the run that contains a trial's folder."""
    return RunFolder(folder.path.parent.parent)


def _one_line(word: str) -> str:
    """Escape an argument to fit on one line."""
    return word.replace("\\", "\\\\").replace("\n", "\\n") if "\n" in word else word


UNKNOWN_MODEL = "unknown"
"""Model type of anything but a transformers model."""

_WORK = axes_known(Visibility.BY_ENGINE)
_NEVER_KNOWN = ("data", "hyperparameters", "timeout_s", *axes_known(Visibility.NEVER))


def unknown_trial(name: str) -> TrialSpec:
    """Return the trial of a script about which nothing is known."""
    return TrialSpec(
        model=ModelSpec(name=name, hf_config={"model_type": UNKNOWN_MODEL}),
        strategy=SCRIPT,
        own=OwnScript(name=name, unknown=(*_WORK, *_NEVER_KNOWN)),
    )


def laid_out(trial: TrialSpec, world_size: int, ranks_per_node: int) -> TrialSpec:
    """Return `trial` on that many ranks; on one node if they do not divide evenly."""
    even = ranks_per_node > 0 and world_size % ranks_per_node == 0
    nodes = world_size // ranks_per_node if even else 1
    return trial.model_copy(update={"num_nodes": nodes, "gpus_per_node": world_size // nodes})


def engine_trial(engine: Any, name: str, steps: StepsSpec, sequence_length: int | None) -> TrialSpec:
    """Describe the work of a DeepSpeed engine; `sequence_length` comes from its batches."""
    zero = _config(engine).zero_config
    inner = getattr(engine.optimizer, "optimizer", None)
    fields: dict[str, Any] = {
        **_offloads(engine),
        # A secondary partition among one rank is none.
        "hpz_partition_size": zero.zero_hpz_partition_size if zero.zero_hpz_partition_size > 1 else None,
        "quantized_weights": zero.zero_quantized_weights,
        "quantized_gradients": zero.zero_quantized_gradients,
        "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "sequence_length": sequence_length,
        "precision": _precision(engine),
        "optimizer": _known_class(inner if inner is not None else engine.optimizer),
        **_model_settings(engine.module),
        "ds_config": {k: v for k, v in leaves(engine_file(engine)) if k != "steps_per_print"},  # accelerate: inf
    }
    return _script_trial(engine.module, f"zero{engine.zero_optimization_stage()}", name, steps, fields)


def loop_trial(
    module: Any, optimizers: Sequence[Any], strategy: str, name: str, steps: StepsSpec, sequence_length: int | None
) -> TrialSpec:
    """Describe the work of a loop without DeepSpeed over `module`, as far as it is known."""
    dtypes = {str(dtype).removeprefix("torch.") for dtype in _dtypes(module)}
    fields: dict[str, Any] = {
        "sequence_length": sequence_length,
        "precision": Precision.FP32 if dtypes == {"float32"} else None,
        "optimizer": _loops_optimizer(optimizers[0]) if len(optimizers) == 1 else None,
        **_model_settings(module),
    }
    return _script_trial(module, strategy, name, steps, fields)


def _script_trial(module: Any, strategy: str, name: str, steps: StepsSpec, fields: dict[str, Any]) -> TrialSpec:
    """Build the trial of the known `fields`; None means unknown."""
    known = {field: value for field, value in fields.items() if value is not None}
    unknown = tuple(field for field in _WORK if field != "model" and field not in known)
    script = OwnScript(name=name, unknown=(*unknown, *_NEVER_KNOWN))
    return TrialSpec(model=_model(module), strategy=strategy, steps=steps, own=script, **known)


def _loops_optimizer(optimizer: Any) -> Optimizer | None:
    """Identify a torch optimizer."""
    # The same class may be another kernel, so its settings count too.
    kind, group = type(optimizer).__name__, optimizer.param_groups[0]
    for info in OPTIMIZERS.values():
        settings = info.torch_settings.items()
        if settings and info.torch_class == kind and all(group.get(key) == value for key, value in settings):
            return info.name
    return _known_class(optimizer)


def _known_class(optimizer: Any) -> Optimizer | None:
    """Identify an optimizer by its class; others, plain Adam among them, are none of ours."""
    kind = type(optimizer).__name__
    known = (info for info in OPTIMIZERS.values() if kind == info.class_name)
    return next((info.name for info in known), None)


def engine_file(engine: Any) -> dict[str, Any]:
    """Return the engine's given configuration as plain values without secrets."""
    plain: dict[str, Any] = _plain("", getattr(_config(engine), "_param_dict", {}))
    return plain


def _plain(name: str, value: Any) -> Any:
    """Convert `value` to JSON types: non-finite numbers as text, secrets masked."""
    if isinstance(value, Mapping):
        return {str(key): _plain(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int | float | bool) or value is None:
        return value
    return MARK if is_secret_name(name) else redact_text(str(value))


def _model(module: Any) -> ModelSpec:
    """Describe a transformers model by its config, anything else by its class alone."""
    config = getattr(module, "config", None)
    as_dict = getattr(config, "to_diff_dict", None)
    model_type = getattr(config, "model_type", "")
    if as_dict is None or not isinstance(model_type, str) or not model_type:
        return ModelSpec(name=type(module).__name__, hf_config={"model_type": UNKNOWN_MODEL})
    # The version that wrote the config is no part of the work: runs under two versions are to be compared.
    values = {k: v for k, v in _plain("", as_dict()).items() if not k.startswith("_") and k != "transformers_version"}
    name = str(getattr(config, "_name_or_path", "") or "").rstrip("/").rpartition("/")[2]
    return ModelSpec(name=name or type(module).__name__, hf_config={**values, "model_type": model_type})


def _model_settings(module: Any) -> dict[str, Any]:
    """Read attention and checkpointing off a transformers model; None if unknown."""
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    attention = Attention(implementation) if implementation in set(Attention) else None
    return {
        "attention": attention,
        # transformers renamed the attribute
        "activation_checkpointing": getattr(
            module, "is_activation_checkpointing", getattr(module, "is_gradient_checkpointing", None)
        ),
    }


def _offloads(engine: Any) -> dict[str, Any]:
    """Read the places of the states off the engine's configuration; `nvme_path` if it swaps."""
    zero = _config(engine).zero_config
    sections = {"offload_optimizer": zero.offload_optimizer, "offload_param": zero.offload_param}
    devices: dict[str, Any] = {name: _device(section) for name, section in sections.items()}
    paths = (getattr(section, "nvme_path", None) for section in sections.values())
    path = next((str(path) for path in paths if path is not None), None)
    return {**devices, "nvme_path": path} if Offload.NVME in devices.values() else devices


def _device(section: Any) -> Offload:
    device = getattr(section, "device", "none")
    return Offload(str(getattr(device, "value", device) or "none"))


def _precision(engine: Any) -> Precision | None:
    if engine.bfloat16_enabled():
        return Precision.BF16
    if engine.fp16_enabled():
        return Precision.FP16
    dtypes = {str(dtype) for dtype in _dtypes(engine.module)}
    return Precision.FP32 if dtypes == {"torch.float32"} else None


def _dtypes(module: Any) -> Iterator[Any]:
    return (parameter.dtype for parameter in module.parameters())


def _config(engine: Any) -> Any:
    """DeepSpeed's parsed configuration, which has no public name."""
    return engine._config  # noqa: SLF001 -- see above
