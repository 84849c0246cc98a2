"""Second launch of a trial with a checkpoint: the same work, possibly on other ranks."""

from zerobench.config.trial.trial import TrialSpec


def resume_world_size(trial: TrialSpec) -> int:
    """Ranks of the second launch."""
    world_size = None if trial.checkpoint is None else trial.checkpoint.resume_world_size
    return trial.world_size if world_size is None else world_size


def resumed_trial(trial: TrialSpec) -> TrialSpec:
    """`trial` as its second launch runs it: on one node of `resume_world_size` ranks, with the same global batch in
    more accumulation steps (config/rules/checkpoint_rules.py refuses uneven ones).
    """
    ranks = resume_world_size(trial)
    if ranks == trial.world_size:
        return trial
    accumulation = max(1, trial.gradient_accumulation_steps * trial.world_size // ranks)
    return trial.model_copy(
        update={"num_nodes": 1, "gpus_per_node": ranks, "gradient_accumulation_steps": accumulation}
    )


def needs_universal(trial: TrialSpec) -> bool:
    """Return whether the second launch must read a universal checkpoint: DeepSpeed's ZeRO writes one partition per rank
    (deepspeed/checkpoint/ds_to_universal.py).
    """
    return bool(trial.zero_stage) and resume_world_size(trial) != trial.world_size
