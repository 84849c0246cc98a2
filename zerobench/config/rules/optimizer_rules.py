"""Rules for optimizers, from their entries in OPTIMIZERS."""

from functools import partial

from zerobench.config.derived.strategy import strategy_info, uses_deepspeed
from zerobench.config.rules.situation import Rule, Situation
from zerobench.config.trial.optimizers import OPTIMIZERS, OptimizerInfo, StatesPlace, plain_optimizer
from zerobench.config.trial.trial import Offload


def _asks_for(s: Situation, info: OptimizerInfo) -> bool:
    return s.trial.optimizer is info.name


def _needs_offload(info: OptimizerInfo, s: Situation) -> str | None:
    if _asks_for(s, info) and s.trial.offload_optimizer is Offload.NONE:
        return f"optimizer {info.name} with offload_optimizer none: {info.title} updates states in host memory"
    return None


def _needs_device_states(info: OptimizerInfo, s: Situation) -> str | None:
    if _asks_for(s, info) and s.trial.offload_optimizer is not Offload.NONE:
        return (
            f"optimizer {info.name} with offload_optimizer {s.trial.offload_optimizer}: DeepSpeed would "
            f"run {OPTIMIZERS[info.instead[0]].title} instead; use {' or '.join(info.instead)}"
        )
    return None


def _needs_compiler(info: OptimizerInfo, s: Situation) -> str | None:
    is_needed = _asks_for(s, info) and uses_deepspeed(s.trial)  # without DeepSpeed it is torch's own
    if is_needed and info.kernel in s.machine.missing_kernels:
        missing = "a C++ compiler, ninja or the CUDA toolkit (nvcc)" if s.uses_gpus else "a C++ compiler or ninja"
        return f"optimizer {info.name}: DeepSpeed compiles {info.title} at first use, and {missing} is missing"
    return None


def _needs_deepspeed(info: OptimizerInfo, s: Situation) -> str | None:
    without = not strategy_info(s.trial.strategy).uses_deepspeed and s.trial.offload_optimizer is Offload.CPU
    if _asks_for(s, info) and without:
        plain = plain_optimizer(info.name).name
        return f"optimizer {info.name} at {s.trial.strategy}: {info.title} is DeepSpeed's; use {plain}"
    return None


def optimizer_refused(s: Situation) -> str | None:
    """Reason why the trial's strategy does not support its optimizer."""
    why = OPTIMIZERS[s.trial.optimizer].refused.get(s.trial.strategy)
    return None if why is None else f"optimizer {s.trial.optimizer} at {s.trial.strategy}: {why}"


def _not_on_nvme(s: Situation) -> str | None:
    why = OPTIMIZERS[s.trial.optimizer].not_on_nvme
    if why is None or s.trial.offload_optimizer is not Offload.NVME:
        return None
    return f"optimizer {s.trial.optimizer} with offload_optimizer nvme: {why}"


def _not_in_this_world(s: Situation) -> str | None:
    why = OPTIMIZERS[s.trial.optimizer].unavailable.get(s.trial.evidence)
    return None if why is None else f"optimizer {s.trial.optimizer} {s.trial.evidence}: {why}"


def _not_saved(s: Situation) -> str | None:
    why = OPTIMIZERS[s.trial.optimizer].not_saved
    return (
        None if why is None or s.trial.checkpoint is None else f"checkpoint with optimizer {s.trial.optimizer}: {why}"
    )


def _needs_inductor(s: Situation) -> str | None:
    if not OPTIMIZERS[s.trial.optimizer].is_compiled or s.machine.has_inductor:
        return None
    return f"optimizer {s.trial.optimizer}: its step needs torch.compile, which finds no compiler here"


_ON_HOST = [info for info in OPTIMIZERS.values() if info.place is StatesPlace.HOST]
_ON_DEVICE = [info for info in OPTIMIZERS.values() if info.place is StatesPlace.DEVICE]

COMPILER_RULES: dict[str, Rule] = {
    f"{info.name}_needs_compiler": partial(_needs_compiler, info)
    for info in OPTIMIZERS.values()
    if info.kernel is not None
}
COMPILER_RULES["optimizer_needs_inductor"] = _needs_inductor

OPTIMIZER_RULES: dict[str, Rule] = {
    **{f"{info.name}_needs_offload": partial(_needs_offload, info) for info in _ON_HOST},
    **{f"{info.name}_needs_device_states": partial(_needs_device_states, info) for info in _ON_DEVICE},
    **COMPILER_RULES,
    "optimizer_not_on_nvme": _not_on_nvme,
    "optimizer_not_in_this_world": _not_in_this_world,
    "optimizer_not_saved": _not_saved,
}

STRATEGY_OPTIMIZER_RULES: dict[str, Rule] = {
    **{f"{info.name}_needs_deepspeed": partial(_needs_deepspeed, info) for info in _ON_HOST},
    "optimizer_not_at_strategy": optimizer_refused,
}
"""Applied among the rules of strategies (strategy_rules.py)."""
