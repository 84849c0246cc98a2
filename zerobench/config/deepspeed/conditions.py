"""Conditions under which DeepSpeed reads a key: evaluated for a trial, and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zerobench.config.deepspeed.facts import Condition
from zerobench.config.deepspeed.keys import find
from zerobench.config.deepspeed.reading import becomes_bf16_optimizer
from zerobench.config.derived.batch import autotp_size
from zerobench.config.trial.trial import Offload, Precision, TrialSpec

Look = Callable[[str], Any]
"""Returns the value of a fact of the trial, or of a key by its full path."""

_WORDS = {
    "pipeline": ("without a pipeline", "in a pipeline"),
    "swaps": ("where nothing is swapped to NVMe", "where states are swapped to NVMe"),
    "autotp": ("without AutoTP", "with AutoTP"),
    "checkpoint": ("without a checkpoint", "with a checkpoint"),
    "bf16_optimizer": (
        "where BF16_Optimizer is not what runs",
        "in BF16_Optimizer (stage 1 in bf16 with fp32 gradients, or a pipeline in bf16)",
    ),
}
"""Boolean facts: text where one must not hold, and where it must."""


def look_of(trial: TrialSpec, given: Mapping[str, Any]) -> Look:
    """Facts of `trial`, with its keys' values from `given` (by full path) or DeepSpeed's defaults."""

    def key(path: str) -> Any:
        value = given.get(path)
        known = find(path)
        return known.default if value in (None, "auto") and known is not None else value

    facts: dict[str, Callable[[], Any]] = {
        "stage": lambda: trial.zero_stage or 0,
        "pipeline": lambda: trial.zero_stage is None,
        "offload_optimizer": lambda: trial.offload_optimizer.value,
        "offload_param": lambda: trial.offload_param.value,
        "swaps": lambda: Offload.NVME in trial.offloaded_to,
        "optimizer": lambda: trial.optimizer.value,
        "precision": lambda: trial.precision.value,
        "compile": lambda: trial.compile.value,
        "checkpoint": lambda: trial.checkpoint is not None,
        "autotp": lambda: autotp_size(trial) > 1,
        "gradient_clipping": lambda: trial.hyperparameters.gradient_clipping,
        "bf16_optimizer": lambda: becomes_bf16_optimizer(
            trial.zero_stage,
            is_bf16=trial.precision is Precision.BF16,
            accumulates_in=key("data_types.grad_accum_dtype"),
            offload=trial.offload_optimizer,
        ),
    }
    return lambda name: facts[name]() if name in facts else key(name)


def holds(when: Iterable[Condition], look: Look) -> bool:
    """Return whether any of the conditions is met; an empty list always is."""
    conditions = tuple(when)
    return not conditions or any(
        all(look(name) in values for name, values in condition.items()) for condition in conditions
    )


def words(when: Iterable[Condition]) -> str:
    """`at ZeRO stage 1 or 2, or at ZeRO stage 3 with offload_param nvme`."""
    return ", or ".join(
        " ".join(_condition_words(name, values) for name, values in condition.items()) for condition in when
    )


def _condition_words(name: str, values: tuple[Any, ...]) -> str:
    if name in _WORDS:
        return _WORDS[name][bool(values[0])]
    shown = " or ".join(str(value).lower() for value in values)
    return f"at ZeRO stage {shown}" if name == "stage" else f"with {name} {shown}"
