"""Trials of which the whole work is known: a user's own script may not have told all of it."""

from zerobench.config.trial.trial import TrialSpec

_WORK = (
    "model",
    "precision",
    "optimizer",
    "offload_optimizer",
    "offload_param",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "sequence_length",
    "activation_checkpointing",
    "attention",
)


def knows_work(trial: TrialSpec) -> bool:
    """Return whether the trial has every field that decides its memory."""
    return all(map(trial.knows, _WORK))
