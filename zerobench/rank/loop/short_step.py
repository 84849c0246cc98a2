"""A rank's record of a step of which only some micro-batches were played, as that of the whole step."""

from __future__ import annotations

from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.derived.batch import limit_micro_batches
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.record import formula_record
from zerobench.records.records import CollectiveTraffic, CountedFlops, NvmeTraffic, RankRecord

_GROWING: dict[str, tuple[str, ...]] = {
    "collectives": ("calls", "message_bytes"),
    "flops": ("flops",),
    "nvme": ("read_bytes", "written_bytes"),
}
"""Lists of a record whose rows grow with micro-batches, and by which of their figures."""

_Row = CollectiveTraffic | CountedFlops | NvmeTraffic


def as_asked(record: RankRecord, trial: TrialSpec) -> RankRecord:
    """Scale `record`, of `limit_micro_batches(trial)`, to `trial`: memory is unchanged; collectives, FLOPs and bytes on
    drives are multiplied by the closed forms' ratio of all micro-batches to those played.
    """
    short = limit_micro_batches(trial)
    if short is trial:
        return record
    played, asked = short.gradient_accumulation_steps, trial.gradient_accumulation_steps
    notes = [
        *record.notes,
        f"{played} of {asked} micro-batches of a step played; the others add their inputs and losses",
    ]
    try:
        few, all_of_them = (formula_record(spec, plays_allocator=False) for spec in (short, trial))
    except UserError as error:
        notes.append(f"collectives, FLOPs and bytes on drives are those of {played} micro-batches: {error}")
        return record.model_copy(update={"trial_id": trial.trial_id, "notes": notes})
    grown = {name: _grown(name, *(getattr(part, name) for part in (record, few, all_of_them))) for name in _GROWING}
    flops = None if record.flops_per_step is None else record.flops_per_step * asked / played
    return record.model_copy(update={"trial_id": trial.trial_id, "notes": notes, "flops_per_step": flops, **grown})


def _grown(name: str, rows: list[_Row], few: list[_Row], all_of_them: list[_Row]) -> list[_Row]:
    """`rows` as many times as the formula's rows of `few` micro-batches are in its rows of all; those that it has none
    of, such as norms, once a step.
    """
    before, after = ({_key(row): row for row in some} for some in (few, all_of_them))
    return [
        row if (key := _key(row)) not in before else row.model_copy(update=_times(name, row, before[key], after[key]))
        for row in rows
    ]


def _times(name: str, row: _Row, before: _Row, after: _Row) -> dict[str, int]:
    def grown(field: str) -> int:
        now, few, many = (int(getattr(of, field)) for of in (row, before, after))
        return round(now * many / few) if few else now

    return {field: grown(field) for field in _GROWING[name]}


def _key(row: Any) -> tuple[str, ...]:
    return (row.step, row.phase, getattr(row, "kind", ""), str(getattr(row, "group_size", "")))
