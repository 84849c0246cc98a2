"""Rules that skip points of a sweep: each has a name and a function that returns the reason in a sentence.

A point that violates a rule is listed as skipped and never started. Rules refuse only what is known to fail, or to
measure something other than its label; what may fail (too little device memory) is tried, since that is a result.

Rules about invalid work apply to every evidence. Rules about available hardware apply only where they matter: a solo
trial is one process on one device of this machine, so the number of devices is irrelevant; a simulated or formula trial
needs no device, compiler or drive.
"""

import os

from zerobench.common.errors import UserError
from zerobench.common.units import counted, format_bytes, format_count
from zerobench.config.deepspeed import build_ds_config, ds_config_refusal
from zerobench.config.derived.flops import model_flops_per_token
from zerobench.config.derived.host_memory import host_state_bytes
from zerobench.config.derived.machine import CPU_RANKS_PER_CORE
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.models.architecture import position_limit
from zerobench.config.models.causal_models import is_causal_model, takes_attention, unknown_rope_type
from zerobench.config.rules.checkpoint_rules import CHECKPOINT_RULES
from zerobench.config.rules.optimizer_rules import COMPILER_RULES, OPTIMIZER_RULES
from zerobench.config.rules.ramp_rules import RAMP_RULES
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.rules.speed_rules import SPEED_RULES
from zerobench.config.rules.strategy_rules import STRATEGY_RULES
from zerobench.config.rules.swap_rules import SWAP_RULES
from zerobench.config.rules.weight_rules import WEIGHT_RULES
from zerobench.config.trial.allocator import most_rounded_bytes
from zerobench.config.trial.base import Spec
from zerobench.config.trial.plain import one_line
from zerobench.config.trial.trial import Attention, Evidence, Offload, Precision

MOST_PEERS = 8
"""Ranks that may be emulated together on one machine, each a process of half a gigabyte."""


_MOST_STEP_FLOPS = 2**62


class Skip(Spec):
    """Rule that a trial violates."""

    rule: str
    """Name of the rule in RULES."""
    reason: str
    """One sentence with the numbers in it."""


def find_skip(situation: Situation) -> Skip | None:
    """First rule that the situation violates; None if it can run."""
    for name, rule in RULES.items():
        reason = rule(situation) if situation.trial.evidence in AT_HAND.get(name, Evidence) else None
        if reason is not None:
            return Skip(rule=name, reason=one_line(reason))
    return None


def _model_is_not_causal(s: Situation) -> str | None:
    if is_causal_model(s.trial.model):
        return None
    kind = s.trial.model.model_type
    return (
        f"model {s.trial.model.name}: transformers has no causal language model of type {kind}; sweeps "
        "train causal language models only; for your own script use zerobench watch"
    )


def _rope_type_is_unknown(s: Situation) -> str | None:
    if not (unknown := unknown_rope_type(s.trial.model)):
        return None
    kind, known = unknown
    return f"model {s.trial.model.name}: rope_type {kind!r} is not known to transformers; choices: {', '.join(known)}"


def _offload_needs_stage_1(s: Situation) -> str | None:
    if s.offloads and s.trial.zero_stage == 0:
        return f"{s.offloads} at {s.trial.strategy}: DeepSpeed silently ignores offload at stage 0; use stage 1 to 3"
    return None


def _param_offload_needs_stage_3(s: Situation) -> str | None:
    if s.trial.offload_param is not Offload.NONE and s.trial.zero_stage in {1, 2}:
        return f"offload_param {s.trial.offload_param} at {s.trial.strategy}: parameter offload needs stage 3"
    return None


def _nvme_needs_stage_3(s: Situation) -> str | None:
    if s.trial.offload_optimizer is Offload.NVME and s.trial.zero_stage in {1, 2}:
        return (
            f"offload_optimizer nvme at {s.trial.strategy}: DeepSpeed swaps to NVMe at stage 3 only; "
            "stages 1 and 2 would keep the states in host memory"
        )
    return None


def _nvme_needs_path(s: Situation) -> str | None:
    if s.swaps and s.trial.nvme_path is None:
        return f"{s.offloads}: nvme_path is not set; give a folder on the NVMe device (--set nvme_path=...)"
    return None


def _nvme_needs_libaio(s: Situation) -> str | None:
    if s.swaps and not s.machine.has_libaio:
        return f"{s.offloads}: libaio's header and library, or a C++ compiler, are missing (Debian: libaio-dev g++)"
    return None


def _precision_needs_device(s: Situation) -> str | None:
    # Simulated CPU ranks depend on this machine's CPU, as measured ones do
    if s.trial.evidence is Evidence.FORMULA or (s.uses_gpus and not s.trial.evidence.needs_device):
        return None
    supported = {Precision.BF16: s.machine.supports_bf16, Precision.FP16: s.machine.supports_fp16}
    if supported.get(s.trial.precision, True):
        return None
    device = ", ".join(dict.fromkeys(s.machine.gpu_names)) if s.uses_gpus else "this CPU"
    return (
        f"precision {s.trial.precision}: DeepSpeed does not support it on {device or 'this device'}; use bf16 or fp32"
    )


def _nodes_exceed_machine(s: Situation) -> str | None:
    if s.trial.num_nodes > s.machine.num_nodes:
        return f"num_nodes {s.trial.num_nodes}: only {s.machine.num_nodes} available"
    return None


def _ranks_exceed_gpus(s: Situation) -> str | None:
    if s.uses_gpus and s.trial.gpus_per_node > s.machine.num_gpus:
        gpus = counted(s.machine.num_gpus, "GPU")
        return f"{counted(s.trial.gpus_per_node, 'rank')} on a node with {gpus}; each rank needs its own GPU"
    return None


def _ranks_exceed_cores(s: Situation) -> str | None:
    most = CPU_RANKS_PER_CORE * s.machine.cpu_cores
    if not s.uses_gpus and s.trial.gpus_per_node > most:
        return (
            f"{counted(s.trial.gpus_per_node, 'rank')} on {counted(s.machine.cpu_cores, 'CPU core')}: at most {most} "
            f"({CPU_RANKS_PER_CORE} per core)"
        )
    return None


def _rank_exceeds_world(s: Situation) -> str | None:
    if s.trial.prediction.rank >= s.trial.world_size:
        return f"rank {s.trial.prediction.rank} of {s.trial.world_size}: ranks are numbered from 0"
    return None


def _sequence_exceeds_positions(s: Situation) -> str | None:
    limit = position_limit(s.trial.model)
    if limit is not None and s.trial.sequence_length > limit:
        return f"sequence_length {s.trial.sequence_length}: {s.trial.model.name} has {limit} positions"
    return None


def _step_exceeds_records(s: Situation) -> str | None:
    # Records store FLOPs in 64 bits; half of that leaves room for a recomputed forward pass
    per_token, _ = model_flops_per_token(s.trial.model, s.trial.sequence_length)
    if per_token is None or (flops := per_token * s.trial.tokens_per_gpu) < _MOST_STEP_FLOPS:
        return None
    return (
        f"sequence_length {s.trial.sequence_length}: a step's {flops:.1e} FLOPs per GPU are more than a record counts; "
        f"at most {_MOST_STEP_FLOPS:.1e}"
    )


def _sdpa_needs_model(s: Situation) -> str | None:
    return _model_lacks(s, Attention.SDPA)


def _flash_attention_needs_model(s: Situation) -> str | None:
    return _model_lacks(s, Attention.FLASH_ATTENTION_2)


def _model_lacks(s: Situation, attention: Attention) -> str | None:
    if s.trial.attention is not attention or takes_attention(s.trial.model, attention):
        return None
    return (
        f"attention {attention}: transformers' {s.trial.model.model_type} does not support it; "
        f"use {_attention_choices(s)}"
    )


def _attention_choices(s: Situation) -> str:
    """Attentions that the model supports and the situation can run."""
    takes_flash = s.uses_gpus and s.trial.precision is not Precision.FP32
    choices = (Attention.SDPA, Attention.EAGER, *([Attention.FLASH_ATTENTION_2] if takes_flash else []))
    return " or ".join(attention for attention in choices if takes_attention(s.trial.model, attention))


def _emulated_needs_gpu(s: Situation) -> str | None:
    if s.trial.evidence is Evidence.EMULATED and not s.uses_gpus:
        return "evidence emulated: emulation needs a GPU (--set gpu=h200)"
    return None


def _all_ranks_need_emulation(s: Situation) -> str | None:
    if not s.trial.prediction.all_ranks:
        return None
    if s.trial.evidence is not Evidence.EMULATED:
        return f"rank all with evidence {s.trial.evidence}: only emulated trials run all ranks; give one rank"
    if s.trial.world_size > MOST_PEERS:
        return f"rank all with {s.trial.world_size} ranks: at most {MOST_PEERS} run together; give one rank"
    return None


def _flash_attention_needs_gpu(s: Situation) -> str | None:
    if s.trial.attention is not Attention.FLASH_ATTENTION_2:
        return None
    if not s.uses_gpus:
        return f"attention flash_attention_2: needs GPUs; use {_attention_choices(s)}"
    if s.trial.precision is Precision.FP32:
        return "attention flash_attention_2 with precision fp32: supports fp16 and bf16 only"
    if s.trial.evidence.needs_device and not s.machine.has_flash_attention:
        return "attention flash_attention_2: the package flash-attn is not installed"
    return None


def _ds_config_contradicts(s: Situation) -> str | None:
    if not uses_deepspeed(s.trial):
        return None
    try:
        build_ds_config(s.trial)
    except UserError as error:
        return str(error)
    return None


def _ds_config_not_obeyed(s: Situation) -> str | None:
    return ds_config_refusal(s.trial) if uses_deepspeed(s.trial) else None


def _host_memory(s: Situation) -> str | None:
    if s.num_params is None or s.machine.host_memory_bytes is None or not s.trial.trains_all:
        return None  # of frozen weights there are no states
    ranks = s.processes_per_node
    states = host_state_bytes(s.trial, s.num_params, s.machine.accelerator, most_rounded_bytes(os.environ))
    needed = states // s.trial.gpus_per_node * ranks
    if needed <= s.machine.host_memory_bytes:
        return None
    whose = f"{ranks} ranks hold" if s.trial.evidence is Evidence.MEASURED else "one rank holds"
    return (
        f"{s.trial.model.name} ({format_count(s.num_params)} parameters): the states {whose} in host "
        f"memory take at least {format_bytes(needed)}; the node has "
        f"{format_bytes(s.machine.host_memory_bytes)}"
    )


RULES = {
    **STRATEGY_RULES,
    **RAMP_RULES,
    **CHECKPOINT_RULES,
    **SPEED_RULES,
    **WEIGHT_RULES,
    **rules_of(globals(), before={"precision_needs_device": SWAP_RULES, "sequence_exceeds_positions": OPTIMIZER_RULES}),
}
"""In the order of application; the first violation is reported."""

LAYOUT_RULES = ("nodes_exceed_machine", "ranks_exceed_gpus", "ranks_exceed_cores")
"""Rules on the number of ranks of a machine."""

_MEASURED = frozenset({Evidence.MEASURED})
_ON_DEVICE = frozenset(evidence for evidence in Evidence if evidence.needs_device)

AT_HAND: dict[str, frozenset[Evidence]] = {
    **dict.fromkeys(LAYOUT_RULES, _MEASURED),
    **dict.fromkeys(CHECKPOINT_RULES, _MEASURED),
    "nvme_needs_path": _ON_DEVICE,
    "nvme_needs_libaio": _ON_DEVICE,
    **dict.fromkeys(COMPILER_RULES, _ON_DEVICE),
    "host_memory": _ON_DEVICE,
}
"""Rules about available hardware, with the evidences to which each applies; others apply to all."""
