"""A rank's record of a step of which only some micro-batches were played, as that of the whole step."""

from __future__ import annotations

from zerobench.errors import UserError
from zerobench.formulas.record import formula_record
from zerobench.records import RankRecord
from zerobench.spec.batch import as_played
from zerobench.spec.trial import Evidence, TrialSpec

_COUNTED = ("collectives", "flops", "flops_per_step", "flops_formula", "nvme")
"""Fields that grow with micro-batches."""


def as_asked(record: RankRecord, trial: TrialSpec) -> RankRecord:
    """`record`, of `as_played(trial)`, as that of `trial`: memory as it was played; collectives, FLOPs and bytes on
    drives of all micro-batches as the formula counts them.
    """
    played, asked = as_played(trial).gradient_accumulation_steps, trial.gradient_accumulation_steps
    if played == asked:
        return record
    notes = [
        *record.notes,
        f"{played} of {asked} micro-batches of a step played; the others add their inputs and losses",
    ]
    try:
        whole = formula_record(trial.model_copy(update={"evidence": Evidence.FORMULA}), plays_allocator=False)
    except UserError as error:
        notes.append(f"collectives, FLOPs and bytes on drives are those of {played} micro-batches: {error}")
        return record.model_copy(update={"trial_id": trial.trial_id, "notes": notes})
    counted = {name: getattr(whole, name) for name in _COUNTED}
    return record.model_copy(update={"trial_id": trial.trial_id, "notes": notes, **counted})
