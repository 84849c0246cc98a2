"""For any of DeepSpeed's keys, a value other than its default, and trials in which it may be read."""

import itertools
from collections.abc import Iterator
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.deepspeed import ds_config_refusal
from zerobench.config.deepspeed.facts import fact_of, key_facts
from zerobench.config.deepspeed.keys import find, known_keys
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import HyperparameterSpec, TrialSpec

LLAMA = ModelSpec(name="llama-tiny", hf_config={"model_type": "llama", "hidden_size": 256, "vocab_size": 8000})

_KNOWN = {path for path, key in known_keys().keys.items() if key.type != "section"}

KEYS = sorted(_KNOWN | {path for path in key_facts() if not path.endswith(".*")})
"""All that may be given a value, and what the table names of sections that take any key."""

_VALUES: dict[str, Any] = {
    "checkpoint.tag_validation": "Fail",
    "zero_optimization.offload_optimizer.buffer_count": 6,
    "data_types.keep_in_fp32_modules": ["norm"],
    "optimizer.params": {"nesterov_momentum": 0.9},
    "zero_optimization.overlap_comm": False,  # stage 3 overlaps by default
    "scheduler.params": {"warmup_num_steps": 7},
    "scheduler.type": "WarmupLR",
}
"""Where the type does not say what DeepSpeed takes."""


def sample(path: str) -> Any:
    """A value that DeepSpeed takes for the key and would not have without it."""
    key, fact = find(path), fact_of(path)
    assert key is not None
    if path in _VALUES:
        return _VALUES[path]
    choices = [one for one in (*key.choices, *fact.choices) if one not in (key.default, None)]
    if choices:
        return choices[-1]
    if key.type == "bool":
        return not key.default
    if key.type == "int":
        return int(key.default) // 2 if key.default and key.default > 1 else 1 + int(key.default or 0)
    by_type = {"float": 0.25, "str": "other", "list": ["other"], "free": {"other": 1}}
    return by_type.get(key.type, "other")


def trials(**fields: Any) -> Iterator[TrialSpec]:
    """One process each, at every stage and as a pipeline, with every offload, optimizer and precision."""
    unclipped = HyperparameterSpec(gradient_clipping=0.0)
    pipeline: dict[str, Any] = {"pipeline_schedule": "deepspeed", "gpus_per_node": 2, "gradient_accumulation_steps": 2}
    kinds: dict[str, dict[str, Any]] = {f"zero{stage}": {} for stage in (3, 2, 1, 0)} | {"pipeline": pipeline}
    offloads = [("none", "none"), ("cpu", "none"), ("cpu", "cpu"), ("nvme", "none"), ("nvme", "nvme")]
    optimizers, precisions = ("adamw", "fused_adamw", "cpu_adam", "sgd"), ("bf16", "fp32", "fp16")
    extras: list[dict[str, Any]] = [{}, {"hyperparameters": unclipped}, {"checkpoint": {"every_steps": 2}}]
    for (name, kind), (states, params), optimizer, precision, extra in itertools.product(
        kinds.items(), offloads, optimizers, precisions, extras
    ):
        if (states == "none") is (optimizer == "cpu_adam"):
            continue
        yield TrialSpec(
            model=LLAMA,
            strategy=name,
            offload_optimizer=states,
            offload_param=params,
            nvme_path="/nvme",
            optimizer=optimizer,
            precision=precision,
            **(kind | extra | fields),
        )


def obeying(path: str) -> TrialSpec:
    """The first trial that obeys the key, with the other keys that this takes."""
    needed: list[dict[str, Any]] = [{}]
    for condition in fact_of(path).when:
        others = {name: values[0] for name, values in condition.items() if find(name) is not None}
        needed.append(others | ({"tensor_parallel.autotp_size": 2} if "autotp" in condition else {}))
    if path == "bf16.immediate_grad_update":
        needed.append({"data_types.grad_accum_dtype": "fp32"})
    for others in needed:
        ranks = {"gpus_per_node": 2} if "tensor_parallel.autotp_size" in others else {}
        for trial in trials(ds_config=others | {path: sample(path)}, **ranks):
            if not _is_refused(trial):
                return trial
    raise AssertionError(f"no trial obeys {path}")


def _is_refused(trial: TrialSpec) -> bool:
    try:
        return ds_config_refusal(trial) is not None
    except UserError:
        return True
