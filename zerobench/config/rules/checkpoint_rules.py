"""Rules for trials that save and resume."""

from dataclasses import replace

from zerobench.config.derived.batch import AUTOTP_SIZE, autotp_size, processes_of
from zerobench.config.derived.resume import needs_universal, resume_world_size, resumed_trial
from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.derived.strategy import strategy_info, uses_deepspeed
from zerobench.config.rules.ramp_rules import RAMP_RULES
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.rules.strategy_rules import STRATEGY_RULES
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import Offload

_RESUMED_RULES = (
    "too_few_processes",
    "workers_cannot_share_batch",
    "tensor_not_divisible",
    "autotp_not_divisible",
    "blocks_not_divisible",
    "groups_not_even",
)


def _strategy_saves_nothing(s: Situation) -> str | None:
    info = strategy_info(s.trial.strategy)
    if s.trial.checkpoint is None or info.checkpoint is not None:
        return None
    return f"checkpoint at {info.name}: not supported"


def _checkpoint_of_swapped_states(s: Situation) -> str | None:
    if s.trial.checkpoint is None or not s.swaps:
        return None
    if s.trial.offload_optimizer is not Offload.NVME:
        return f"checkpoint with {s.offloads}: saving parameters from NVMe is not supported; use cpu"
    return (
        f"checkpoint with {s.offloads}: DeepSpeed restores the optimizer's swap files without Adam's step "
        "counts (runtime/engine.py, load_checkpoint), so training would differ; use cpu"
    )


def _nothing_to_resume(s: Situation) -> str | None:
    checkpoint = s.trial.checkpoint
    total = 0 if checkpoint is None else len(plan_steps(s.trial))
    if checkpoint is None or checkpoint.every_steps < total:
        return None
    return f"checkpoint every {checkpoint.every_steps} steps of {total}: no checkpoint before the last step"


def _fault_out_of_place(s: Situation) -> str | None:
    checkpoint, steps = s.trial.checkpoint, s.trial.steps
    if checkpoint is None or checkpoint.fault is None:
        return None
    fault, total = checkpoint.fault, len(plan_steps(s.trial))
    if fault.rank >= processes_of(s.trial):
        return f"checkpoint.fault: rank {fault.rank} of {processes_of(s.trial)}: ranks are numbered from 0"
    if not checkpoint.every_steps <= fault.step < total:
        return (
            f"checkpoint.fault: step {fault.step}: choices: from the first checkpoint (step "
            f"{checkpoint.every_steps}) to step {total - 1}"
        )
    measured = 1 + steps.warmup + steps.memory
    if fault.step < measured:
        return f"checkpoint.fault: step {fault.step}: the trial's memory is measured in its first {measured} steps"
    return None


def _checkpoint_bound_to_its_ranks(s: Situation) -> str | None:
    info, ranks = strategy_info(s.trial.strategy), resume_world_size(s.trial)
    if ranks == s.trial.world_size:
        return None
    if info.divides_layers and uses_deepspeed(s.trial):
        return (
            f"checkpoint.resume_world_size {ranks} at pipeline_schedule deepspeed: optimizer states are "
            "saved per stage and load only into the same stages; use 1f1b or gpipe"
        )
    if info.bound_to_ranks is None:
        return None
    return f"checkpoint.resume_world_size {ranks} at {info.name}: {info.bound_to_ranks}"


def _universal_checkpoint_needs_adam(s: Situation) -> str | None:
    if not needs_universal(s.trial) or OPTIMIZERS[s.trial.optimizer].has_adams_moments:
        return None
    return (
        f"checkpoint.resume_world_size {resume_world_size(s.trial)} with optimizer {s.trial.optimizer}: "
        "DeepSpeed's universal checkpoint needs Adam's moments (ds_to_universal.py); use adamw"
    )


def _universal_checkpoint_takes_no_cut_partitions(s: Situation) -> str | None:
    if not needs_universal(s.trial) or s.trial.zero_stage != 3 or autotp_size(s.trial) == 1:
        return None
    return (
        f"checkpoint.resume_world_size {resume_world_size(s.trial)} with {AUTOTP_SIZE} at zero3: "
        "DeepSpeed's universal checkpoint fails on tensors both cut by AutoTP and partitioned by stage "
        "3; use zero1 or zero2"
    )


def _resumed_cannot_run(s: Situation) -> str | None:
    trial, ranks = s.trial, resume_world_size(s.trial)
    if ranks == trial.world_size:
        return None
    what = f"checkpoint.resume_world_size {ranks}"
    if trial.num_nodes > 1:
        return (
            f"{what} of {trial.world_size} ranks on {trial.num_nodes} nodes: resuming on another "
            "number of ranks works on one node only"
        )
    if trial.world_size * trial.gradient_accumulation_steps % ranks:
        micro_batches = trial.world_size * trial.gradient_accumulation_steps
        return f"{what}: a step's {micro_batches} micro-batches cannot be divided among {ranks} ranks"
    most = s.machine.most_ranks_per_node
    if ranks > most:
        return f"{what}: {most} ranks can run here"
    resumed = replace(s, trial=resumed_trial(trial))
    rules = [*(STRATEGY_RULES[name] for name in _RESUMED_RULES), *RAMP_RULES.values()]
    why = next((reason for rule in rules if (reason := rule(resumed))), None)
    return None if why is None else f"{what}: {why}"


CHECKPOINT_RULES = rules_of(globals())
"""Applied to measured trials, after the rules of the strategies, in this order. A prediction writes nothing."""
