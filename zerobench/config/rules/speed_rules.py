"""Rules for settings that trade memory or start-up time for speed: cross_entropy, compile, selective checkpointing."""

from zerobench.config.deepspeed import replaces_linear
from zerobench.config.derived.batch import autotp_size
from zerobench.config.derived.strategy import strategies_with, strategy_info
from zerobench.config.models.architecture import complete
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.trial.recomputation import OPERATIONS
from zerobench.config.trial.trial import Compile, CrossEntropy, Precision

PLAIN_HEADS = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3")
"""Model types whose loss is one matrix and the cross entropy of its output, with nothing between (transformers 5,
models/*/modeling_*.py, ForCausalLM.forward); others cap or scale logits, or add further losses."""


def _cross_entropy_needs_whole_head(s: Situation) -> str | None:
    if s.trial.cross_entropy is CrossEntropy.FULL:
        return None
    what = f"cross_entropy {s.trial.cross_entropy} at {s.trial.strategy}"
    if "cross_entropy" not in strategy_info(s.trial.strategy).axes:
        return f"{what}: this strategy has its own loss; use it with {strategies_with('cross_entropy')}"
    if autotp_size(s.trial) > 1:
        return f"{what}: AutoTP splits the output head's vocabulary across ranks"
    return None


def _cross_entropy_needs_plain_head(s: Situation) -> str | None:
    kind = s.trial.model.model_type
    if s.trial.cross_entropy is CrossEntropy.FULL or kind in PLAIN_HEADS:
        return None
    return f"cross_entropy {s.trial.cross_entropy}: not verified for {kind}; verified for {', '.join(PLAIN_HEADS)}"


def _liger_needs_gpu(s: Situation) -> str | None:
    if s.trial.cross_entropy is not CrossEntropy.LIGER:
        return None
    what = "cross_entropy liger"
    if not s.trial.evidence.needs_device:
        return f"{what} {s.trial.evidence}: Triton kernel allocations are not predicted; use chunked"
    if not s.uses_gpus:
        return f"{what}: its Triton kernel needs GPUs; use chunked"
    if not s.machine.has_liger:
        return f"{what}: the package liger-kernel is not installed (pip install liger-kernel)"
    if s.trial.precision is Precision.FP16:
        return f"{what} with precision fp16: gradients are computed before loss scaling and underflow; use bf16"
    return None


def _compile_needs_own_loop(s: Situation) -> str | None:
    if s.trial.compile is Compile.NONE:
        return None
    what = f"compile {s.trial.compile} at {s.trial.strategy}"
    if "compile" not in strategy_info(s.trial.strategy).axes:
        return f"{what}: not supported; use it with {strategies_with('compile')}"
    if autotp_size(s.trial) > 1:
        return f"{what}: not supported with AutoTP"
    if s.trial.compile is Compile.MODEL and s.trial.strategy == "fsdp":
        return f"{what}: FSDP2's per-block hooks do not fit into one graph; use blocks"
    return None


def _compile_needs_device(s: Situation) -> str | None:
    # The ledger always measures the uncompiled model (rank/training/compilation.py)
    if s.trial.compile is Compile.NONE:
        return None
    what = f"compile {s.trial.compile}"
    if not s.trial.evidence.needs_device:
        return (
            f"{what} {s.trial.evidence}: inductor decides on a real device what is saved for backward; "
            "predict compile none, which is what the ledger measures of a compiled model too"
        )
    if not s.machine.has_inductor:
        return f"{what}: torch.compile needs a C++ compiler{' and Triton' if s.uses_gpus else ''}"
    if s.trial.steps.warmup < 1:
        return f"{what} with steps.warmup 0: compilation happens in the first step after the memory step; set 1 or more"
    return None


def _kept_operations_need_eager_mode(s: Situation) -> str | None:
    if s.trial.activation_checkpointing != OPERATIONS or s.trial.compile is Compile.NONE:
        return None
    return (
        f"activation_checkpointing {OPERATIONS} with compile {s.trial.compile}: inductor decides what is "
        "saved for backward; use every-2, or compile none"
    )


def _kept_operations_need_no_bias(s: Situation) -> str | None:
    # DeepSpeed's linear layer modifies a result (runtime/zero/linear.py, `output += bias`), which torch refuses if it
    # was saved
    if s.trial.activation_checkpointing != OPERATIONS or not replaces_linear(s.trial):
        return None
    config, kind = complete(s.trial.model), s.trial.model.model_type
    if kind in _WITHOUT_BIAS and not any(config.get(name) for name in ("attention_bias", "mlp_bias")):
        return None
    return (
        f"activation_checkpointing {OPERATIONS} at zero3: DeepSpeed's linear layer adds a bias in place "
        f"to a saved result, and {kind} so configured may have biases; use every-2, or "
        "zero_optimization.memory_efficient_linear false"
    )


_WITHOUT_BIAS = ("gpt2", "llama", "mistral")
"""Model types whose linear layers have a bias only if their configuration says so; GPT-2's are no nn.Linear."""

SPEED_RULES = rules_of(globals())
"""Applied with those of the strategies."""
