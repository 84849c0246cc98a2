"""A script's work as a trial that can be predicted."""

from zerobench.config.deepspeed import drop_refused_keys
from zerobench.config.trial.trial import TrialSpec

WORK = {"model", "micro_batch_size", "gradient_accumulation_steps", "sequence_length", "precision"}
"""Of a script's trial: what a prediction of it must know."""


def work_of(trial: TrialSpec) -> TrialSpec | None:
    """`trial`, or what a script's tracker saw, as one that can be predicted; None where too little of it is known."""
    if trial.own is None:
        return trial
    if WORK & set(trial.own.unknown):
        return None
    return drop_refused_keys(trial.model_copy(update={"own": None}))
