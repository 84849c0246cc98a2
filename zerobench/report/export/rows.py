"""The rows of the tidy tables: what each trial's records come to, one mapping or one set of columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from zerobench.config.axes.axes import KEY_COLUMNS
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.records.trials import Trial, num_params
from zerobench.report.export import schema
from zerobench.report.export.schema import KEYS
from zerobench.report.figures.parity import Parity
from zerobench.report.figures.predictions.predicted import Cell
from zerobench.report.figures.run.runs import Errors
from zerobench.report.figures.speed import Speed
from zerobench.report.figures.trial import TrialFigures

Columns = dict[str, list[Any]]
Row = dict[str, Any]


def key_values(trial: Trial) -> dict[str, Any]:
    """The key columns of `trial` (schema.KEYS); what nobody knows of a user's own script is None."""
    return keys_of(trial.spec, trial.record.run_id, trial.record.config_hash, num_params(trial))


def keys_of(spec: TrialSpec, run_id: str, config_hash: str, count: int | None) -> dict[str, Any]:
    """The key columns of a trial of `run_id` whose model has `count` parameters."""
    values = {
        "run_id": run_id,
        "trial_id": spec.trial_id,
        "config_hash": config_hash,
        "repeat": spec.repeat,
        **{column.name: column.value(spec) for column in KEY_COLUMNS if column.value is not None},
        "num_params": count,
    }
    return {name: values[name] if spec.knows(name) else None for name in KEYS}


_OF_ROW = tuple(name for name in schema.MEMORY if name not in {*KEYS, "rank", "role"})


def memory_columns(trial: Trial) -> Columns:
    """The columns after the keys of `trial`'s rows in the memory table (schema.MEMORY): all ranks, as recorded."""
    rows = [row for rank in trial.ranks for row in rank.memory]
    columns: Columns = {
        "rank": [rank.rank for rank in trial.ranks for _ in rank.memory],
        "role": [rank.role for rank in trial.ranks for _ in rank.memory],
    }
    return columns | {name: list(map(attrgetter(name), rows)) for name in _OF_ROW}


_OF_CELL = tuple(name for name in schema.ERRORS if name not in {*KEYS, "against"})


def error_columns(cells: Sequence[Cell], against: Evidence) -> Columns:
    """The columns after the keys of the prediction's rows in the errors table (schema.ERRORS)."""
    columns: Columns = {name: [getattr(cell, name) for cell in cells] for name in _OF_CELL}
    return {**columns, "against": [against.value] * len(cells)}


_OF_SPEED = {field.name for field in fields(Speed)} & set(schema.TRIALS)


def trial_keys(trial: TrialFigures) -> Row:
    """Key columns of `trial` (schema.KEYS)."""
    return keys_of(trial.spec, trial.run_id, trial.config_hash, trial.num_params)


def summary_row(trial: TrialFigures) -> Row:
    """Row of `trial` in schema.SUMMARY, and so in schema.TRIALS; without its energy."""
    columns = {name: getattr(trial, name, None) for name in schema.SUMMARY if name not in KEYS}
    speed = {name: None if trial.speed is None else getattr(trial.speed, name) for name in _OF_SPEED}
    expected = trial.expected
    return {
        **trial_keys(trial),
        **columns,
        **speed,
        "expected_step_s": expected and expected.step_s,
        "expected_step_low_s": expected and expected.low_s,
        "expected_step_high_s": expected and expected.high_s,
        "status": trial.status.value,
        "nodes": " ".join(trial.nodes) or None,
        **parity_values(trial.parity),
    }


def parity_values(parity: Parity | None) -> Row:
    """Columns of schema.SUMMARY that depend on the trial's reference."""
    judged = parity if parity is not None and parity.is_judged else None
    has_norms = parity is not None and parity.are_norms_judged and parity.norm_difference is not None
    return {
        "loss_parity": parity and parity.difference,
        "norm_parity": parity and parity.norm_difference,
        "loss_parity_holds": judged and judged.losses_agree,
        "norm_parity_holds": parity.norms_agree if parity is not None and has_norms else None,
    }


def error_rows(errors: Errors) -> Iterator[Row]:
    """The rows of a prediction in schema.ERRORS."""
    keys, columns = trial_keys(errors.trial), error_columns(errors.cells, errors.against)
    return ({**keys, **dict(zip(columns, cells, strict=True))} for cells in zip(*columns.values(), strict=True))


def _peak_rows(trial: TrialFigures) -> Iterator[Row]:
    for place, instant in trial.peaks:
        where = {"rank": instant.rank, "place": place.value, "phase": instant.phase.value}
        yield from ({**where, "category": c.value, "bytes": size} for c, size in instant.categories.items())


def _rank_rows(trial: TrialFigures) -> Iterator[Row]:
    """A rank's own figures, then those of its model states."""
    names = [name for name in schema.RANKS if name not in schema.OF_TRIAL]
    for rank in trial.ranks:
        yield {name: getattr(rank if hasattr(rank, name) else rank.states, name, None) for name in names}


def _rows_of(columns: Mapping[str, str], figures: Callable[[TrialFigures], Sequence[Any]]) -> _Rows:
    """Rows whose columns are attributes of what `figures` has."""
    names = [name for name in columns if name not in schema.OF_TRIAL]
    return lambda trial: ({name: getattr(row, name) for name in names} for row in figures(trial))


_Rows = Callable[[TrialFigures], Iterable[Row]]

PARTS: Mapping[str, tuple[Mapping[str, str], _Rows]] = {
    "peaks": (schema.PEAKS, _peak_rows),
    "ranks": (schema.RANKS, _rank_rows),
    "phases": (schema.PHASES, _rows_of(schema.PHASES, lambda trial: trial.phases)),
    "steps": (schema.STEPS, _rows_of(schema.STEPS, lambda trial: trial.steps)),
    "notes": (schema.NOTES, _rows_of(schema.NOTES, lambda trial: trial.notes)),
}
"""Tables with several rows of each trial: their columns, and the rows of one trial without its key."""
