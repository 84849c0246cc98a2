"""Rules for trials that freeze weights (adapter, frozen) or read them from files (weights)."""

from zerobench.common.errors import UserError
from zerobench.config.derived.batch import autotp_size
from zerobench.config.derived.resume import needs_universal
from zerobench.config.derived.strategy import strategies_with, strategy_info
from zerobench.config.models.tensors import named_weights
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.trial.adapter import base_of, is_wide
from zerobench.config.trial.trial import Compile, Evidence, Offload, Precision, TrialSpec


def _frozen_needs_loop(s: Situation) -> str | None:
    what = frozen_words(s.trial)
    if what is None or "frozen" in strategy_info(s.trial.strategy).axes:
        return None
    return f"{what} at {s.trial.strategy}: this strategy trains all weights; use {strategies_with('frozen')}"


def _frozen_is_not_cut(s: Situation) -> str | None:
    what = frozen_words(s.trial)
    if what is None or autotp_size(s.trial) == 1:
        return None
    return f"{what} with AutoTP: AutoTP does not cut adapter matrices"


def formula_refusal(trial: TrialSpec) -> str | None:
    """Reason why no formula covers a trial that freezes weights; None if one does, or it freezes none."""
    if trial.offload_param is Offload.NVME and not trial.trains_all:
        return "no formula for frozen weights on NVMe; use simulated or emulated"
    return _wide_refusal(trial) if is_wide(trial.adapter) and trial.zero_stage is not None else None


def _frozen_has_no_formula(s: Situation) -> str | None:
    why = formula_refusal(s.trial) if s.trial.evidence is Evidence.FORMULA else None
    return None if why is None else f"{frozen_words(s.trial)} formula: {why}"


def _frozen_is_found(s: Situation) -> str | None:
    # Skipped for models whose parameter names are unknown without building them
    if s.trial.frozen is None:
        return None
    try:
        weights = named_weights(s.trial.model, s.trial.frozen).all
    except UserError:
        return None
    trained = sum(weight.is_trained for weight in weights)
    if 0 < trained < len(weights):
        return None
    which = "every" if trained == 0 else "no"
    return f"{frozen_words(s.trial)}: found in {which} parameter's name; names: {weights[0].name} to {weights[-1].name}"


def _frozen_is_not_saved(s: Situation) -> str | None:
    what = frozen_words(s.trial)
    if what is None or s.trial.checkpoint is None:
        return None
    if s.trial.zero_stage is None:
        less = " without -fp32" if is_wide(s.trial.adapter) else ""
        return f"{what} with checkpoint at {s.trial.strategy}: DeepSpeed alone saves adapters; use zero0 to zero3{less}"
    if base_of(s.trial.adapter) is not None:
        return f"{what} with checkpoint: the scales of quantized matrices would be saved, and their codes not"
    if needs_universal(s.trial):
        return f"{what} with checkpoint.resume_world_size: a universal checkpoint holds all weights; leave it out"
    return None


def _adapter_freezes_all(s: Situation) -> str | None:
    if s.trial.adapter is None or s.trial.frozen is None:
        return None
    return f"frozen {s.trial.frozen!r} with adapter {s.trial.adapter}: the adapter freezes all weights of the model"


def _base_is_not_divided(s: Situation) -> str | None:
    divided = s.trial.strategy == "fsdp" or s.trial.zero_stage == 3
    if base_of(s.trial.adapter) != "int8" or not divided:
        return None
    return (
        f"adapter {s.trial.adapter} at {s.trial.strategy}: bitsandbytes holds the whole int8 matrix beside the divided "
        "parameter (nn/modules.py, Linear8bitLt, state.CB); use nf4, or a strategy that divides no parameters"
    )


def _wide_is_not_cast(s: Situation) -> str | None:
    if not is_wide(s.trial.adapter):
        return None
    if s.trial.precision is Precision.FP32:
        return f"adapter {s.trial.adapter} with precision fp32: adapters have the model's fp32 anyway; leave -fp32 out"
    why = _wide_refusal(s.trial)
    return None if why is None else f"adapter {s.trial.adapter} at {s.trial.strategy}: {why}"


def _wide_refusal(trial: TrialSpec) -> str | None:
    """Reason why the strategy cannot have fp32 adapters next to a 16-bit model; None if it can."""
    if trial.zero_stage is None:
        return None
    what = f"DeepSpeed casts every parameter to {trial.precision} (runtime/engine.py, _cast_module_mixed_precision)"
    if trial.zero_stage == 3 and trial.partitions_as_built:
        what = "what stage 3 makes of fp32 parameters beside 16-bit ones under zero.Init is not known here"
    return f"{what}; use single, ddp or fsdp, or leave -fp32 out"


def _base_is_not_compiled(s: Situation) -> str | None:
    if base_of(s.trial.adapter) is None or s.trial.compile is Compile.NONE:
        return None
    return (
        f"adapter {s.trial.adapter} with compile {s.trial.compile}: torch.compile breaks its graph at every such matrix"
    )


def frozen_words(trial: TrialSpec) -> str | None:
    """Axis and value by which a trial freezes weights; None if it freezes none."""
    if trial.adapter is not None:
        return f"adapter {trial.adapter}"
    return None if trial.frozen is None else f"frozen {trial.frozen!r}"


def _loading_needs_transformers(s: Situation) -> str | None:
    if not s.trial.is_loaded or "weights" in strategy_info(s.trial.strategy).axes:
        return None
    return (
        f"weights {s.trial.weights} at {s.trial.strategy}: it divides a model that was made without memory, which "
        f"from_pretrained does not fill; use {strategies_with('weights')}"
    )


def _loading_is_not_cut(s: Situation) -> str | None:
    if not s.trial.is_loaded or autotp_size(s.trial) == 1:
        return None
    return f"weights {s.trial.weights} with AutoTP: not held against the single process"


def _loading_does_not_quantise(s: Situation) -> str | None:
    if not s.trial.is_loaded or base_of(s.trial.adapter) is None:
        return None
    return (
        f"weights {s.trial.weights} with adapter {s.trial.adapter}: bitsandbytes quantises while transformers reads, "
        "which is not played; use weights drawn"
    )


def _loading_is_played_or_measured(s: Situation) -> str | None:
    why = _NOT_PLAYED.get(s.trial.evidence) if s.trial.is_loaded else None
    return None if why is None else f"weights {s.trial.weights} {s.trial.evidence}: {why}"


_NOT_PLAYED = {
    Evidence.FORMULA: "no formula for reading files; use simulated, or weights drawn",
    Evidence.EMULATED: "host memory is real there, and would have to hold the whole model; use simulated",
}


WEIGHT_RULES = rules_of(globals())
"""Applied after those of settings for speed."""
