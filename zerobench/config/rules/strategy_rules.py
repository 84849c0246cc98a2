"""Rules for strategies: unsupported settings, requirements, and unsupported evidence."""

from zerobench.common.units import counted, format_bytes
from zerobench.config.derived.availability import FRAMEWORKS, unavailable
from zerobench.config.derived.batch import AUTOTP_SIZE, model_parallel_size
from zerobench.config.derived.host_memory import element_bytes
from zerobench.config.derived.roles import num_servers, num_workers
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.derived.tensor_parallel import tensor_parallel_refusal
from zerobench.config.models.architecture import dimensions
from zerobench.config.rules.environment_rules import ENVIRONMENT_RULES
from zerobench.config.rules.optimizer_rules import STRATEGY_OPTIMIZER_RULES
from zerobench.config.rules.pipeline_rules import PIPELINE_RULES, RPC_RULES
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.rules.zeropp_rules import ZEROPP_RULES
from zerobench.config.trial.trial import Compression, Consistency, Evidence, Offload, Precision

_BEYOND_FP32 = {Compression.FP16, Compression.BF16}


def _strategy_unavailable(s: Situation) -> str | None:
    # Packages that a prediction imports here are not required of the machine that it predicts
    if not s.trial.evidence.needs_device:
        return None
    missing = tuple(name for name in s.machine.missing_packages if name not in FRAMEWORKS)
    machine = s.machine.model_copy(update={"missing_packages": missing})
    why = unavailable(strategy_info(s.trial.strategy), machine)
    return None if why is None else f"strategy {s.trial.strategy}: {why}"


def _strategy_not_in_this_world(s: Situation) -> str | None:
    info, evidence = strategy_info(s.trial.strategy), s.trial.evidence
    if evidence in info.evidences:
        return None
    return f"{s.trial.strategy} {evidence}: {info.unavailable.get(evidence, 'not supported')}"


def _too_few_processes(s: Situation) -> str | None:
    least = max(strategy_info(s.trial.strategy).least_processes, num_servers(s.trial) + 1)
    if s.trial.world_size < least:
        return f"{s.trial.strategy} on {counted(s.trial.world_size, 'rank')}: it needs {least} or more"
    return None


def _workers_cannot_share_batch(s: Situation) -> str | None:
    workers, trial = num_workers(s.trial), s.trial
    micro_batches = trial.world_size * trial.gradient_accumulation_steps
    if not num_servers(trial) or workers < 1 or micro_batches % workers == 0:
        return None
    return (
        f"{trial.strategy} on {trial.world_size} ranks: {workers} workers cannot evenly share a step's "
        f"{micro_batches} micro-batches (world_size x gradient_accumulation_steps); set "
        f"gradient_accumulation_steps to a multiple of {workers}"
    )


def _consistency_needs_server(s: Situation) -> str | None:
    if s.trial.consistency is Consistency.SYNC or num_servers(s.trial):
        return None
    return (
        f"consistency {s.trial.consistency} at {s.trial.strategy}: only parameter-server workers can run "
        "asynchronously; use parameter-server"
    )


def _offload_needs_engine(s: Situation) -> str | None:
    info = strategy_info(s.trial.strategy)
    if s.offloads and info.zero_stage is None and not {"offload_optimizer", "offload_param"} & set(info.axes):
        return f"{s.offloads} at {s.trial.strategy}: it cannot offload; use zero1 to zero3"
    return None


def _fsdp_offloads_together(s: Situation) -> str | None:
    places = {s.trial.offload_optimizer, s.trial.offload_param}
    if s.trial.strategy != "fsdp" or places in ({Offload.NONE}, {Offload.CPU}):
        return None
    if Offload.NVME in places:
        return f"{s.offloads} at fsdp: FSDP2 offloads to the CPU only; use zero3"
    return (
        f"{s.offloads} alone at fsdp: CPUOffloadPolicy offloads parameters, gradients and optimizer "
        "states together; set both offload_optimizer and offload_param to cpu"
    )


def _tensor_not_divisible(s: Situation) -> str | None:
    why = tensor_parallel_refusal(s.trial, s.trial.world_size) if s.trial.strategy == "tensor" else None
    return None if why is None else f"tensor on {s.trial.world_size} ranks: {why}"


def _autotp_not_divisible(s: Situation) -> str | None:
    parts = model_parallel_size(s.trial)
    if s.trial.zero_stage is None or parts == 1:
        return None
    what = f"{AUTOTP_SIZE} {parts} at {s.trial.strategy}"
    if s.trial.world_size % parts:
        return f"{what}: {s.trial.world_size} ranks cannot be divided into groups of {parts}"
    if s.trial.evidence is not Evidence.MEASURED:
        return f"{what} {s.trial.evidence}: AutoTP is not predicted; use strategy tensor"
    vocabulary = dimensions(s.trial.model).vocab_size
    if vocabulary is not None and vocabulary % parts:
        return f"{what}: a vocabulary of {vocabulary} splits unevenly; pad it, or use strategy tensor"
    why = tensor_parallel_refusal(s.trial, parts)
    return None if why is None else f"{what}: {why}"


def _compression_needs_ddp(s: Situation) -> str | None:
    if s.trial.compression is not Compression.NONE and "compression" not in strategy_info(s.trial.strategy).axes:
        return f"compression {s.trial.compression} at {s.trial.strategy}: compression hooks need ddp"
    return None


def _compression_needs_values(s: Situation) -> str | None:
    if s.trial.compression is not Compression.NONE and s.trial.evidence.is_predicted:
        return (
            f"compression {s.trial.compression} {s.trial.evidence}: hook memory appears over real steps; "
            "use measured or solo"
        )
    return None


def _compression_needs_fp32(s: Situation) -> str | None:
    if s.trial.compression in _BEYOND_FP32 and s.trial.precision is not Precision.FP32:
        return f"compression {s.trial.compression} with precision {s.trial.precision}: gradients are 16-bit already"
    return None


def _bf16_compression_needs_nccl(s: Situation) -> str | None:
    if s.trial.compression is Compression.BF16 and not s.uses_gpus:
        return "compression bf16 on gloo: torch's hook needs NCCL and GPUs; use fp16"
    return None


def _powersgd_needs_one_bucket(s: Situation) -> str | None:
    if s.trial.compression is not Compression.POWERSGD or s.uses_gpus or s.num_params is None:
        return None
    needed = s.num_params * element_bytes(s.trial)
    if (s.trial.bucket_bytes or 0) >= needed:
        return None
    return (
        "compression powersgd on gloo: torch's hook hangs with several buckets (callbacks in different "
        f"order per rank); set bucket_bytes to {needed} or more ({format_bytes(needed)}: all gradients)"
    )


def _compression_needs_warmup(s: Situation) -> str | None:
    if s.trial.compression.starts_late and s.trial.steps.warmup < 1:
        late = "compression starts with the third step, after the memory step"
        return f"compression {s.trial.compression} with steps.warmup 0: {late}"
    return None


STRATEGY_RULES = {
    **PIPELINE_RULES,
    **rules_of(
        globals(), before={"too_few_processes": ENVIRONMENT_RULES, "compression_needs_ddp": ZEROPP_RULES | RPC_RULES}
    ),
    **STRATEGY_OPTIMIZER_RULES,
}
"""Applied before the other rules, in this order."""
