"""All that views over one run or several are made of: tidy pandas frames, from one pass over the records.

Trials pass through one at a time and leave rows in Arrow columns, so that a hundred thousand of them cost what their
rows cost and not what their records cost. Samples of NVML are not among them: whoever draws a trial's curve reads
that trial's file (nvml_samples.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa

from zerobench import store
from zerobench.report.compared.figures import Figures, figures_of
from zerobench.report.compared.rows import Compared, Key, compare
from zerobench.report.frames import schema
from zerobench.report.frames.figure_lines import FigureLines, GatheredFigures
from zerobench.report.frames.run_rows import (
    note_rows,
    peak_rows,
    phase_rows,
    rank_rows,
    step_rows,
    summary_values,
)
from zerobench.report.frames.tidy_tables import errors_table, pairs, to_pandas
from zerobench.report.labels import labels
from zerobench.report.parity import Parity, ParityJudge
from zerobench.report.tables.model import TrialName
from zerobench.report.trials import LossesOnly, can_be_compared, ended_trials, refusing_impossible_values
from zerobench.spec.trial import TrialSpec

Rows = list[dict[str, Any]]

_VALUES_AT_ONCE = 100_000
"""Values that wait as Python objects before they become Arrow columns, a tenth as large."""

_OF_TRIAL = {
    "peaks": (schema.PEAKS, peak_rows),
    "ranks": (schema.RANKS, rank_rows),
    "phases": (schema.PHASES, phase_rows),
    "steps": (schema.STEPS, step_rows),
    "notes": (schema.NOTES, note_rows),
}
"""The frames that one trial's records alone decide."""


@dataclass(frozen=True, kw_only=True)
class TrialFrames:
    """Frames of one run or several: each trial, and what it is without the course of its steps.

    (run_id, trial_id) is the key everywhere. Columns and dtypes: schema.py.
    """

    runs: Sequence[store.Run]
    trials: pd.DataFrame
    """schema.SUMMARY: one row for each trial that ended, in the runs' order."""
    peaks: pd.DataFrame
    """schema.PEAKS."""
    ranks: pd.DataFrame
    """schema.RANKS."""
    notes: pd.DataFrame
    """schema.NOTES."""
    errors: pd.DataFrame
    """schema.ERRORS: predictions beside what measured the same work in the same run."""

    @property
    def environments(self) -> Mapping[str, Mapping[str, Any]]:
        """environment.json of each run, by run_id."""
        return {run.run_id: run.environment for run in self.runs}

    def run(self, run_id: str) -> store.Run:
        """The run called `run_id`."""
        return next(run for run in self.runs if run.run_id == run_id)


@dataclass(frozen=True, kw_only=True)
class RunFrames(TrialFrames):
    """All of them, beside each other and in their course too."""

    phases: pd.DataFrame
    """schema.PHASES."""
    steps: pd.DataFrame
    """schema.STEPS."""
    lines: FigureLines
    """What tables of few trials show: pipelines, parameter servers, growing batches, checkpoints."""
    comparison: Sequence[Compared]
    """Measured trials beside the single process that trains the same global batch."""


_WITHOUT_COURSE = ("peaks", "ranks", "notes")
"""What of _OF_TRIAL is in TrialFrames."""


def run_frames(runs: Sequence[store.Run]) -> RunFrames:
    """The frames of `runs`.

    Raises:
        UserError: a record is torn, corrupt, newer than this version, or holds an impossible value.

    """
    found = _read(runs, list(_OF_TRIAL), compared=True)
    return RunFrames(
        runs=runs,
        lines=found.lines(),
        comparison=compare(found.figures, found.labels, found.parities),
        **found.frames(),
    )


def trial_frames(runs: Sequence[store.Run]) -> TrialFrames:
    """Some of the frames of `runs`, at half of what all of them cost; raises as `run_frames` does."""
    return TrialFrames(runs=runs, **_read(runs, _WITHOUT_COURSE, compared=False).frames())


@dataclass
class _Found:
    """What one pass over the records leaves."""

    columns: Mapping[str, _Columns]
    summary: _Columns
    errors: list[Any]
    gathered: GatheredFigures = field(default_factory=GatheredFigures)
    keys: list[Key] = field(default_factory=list)
    """Of the trials in their order; runs of one name may have the same."""
    specs: dict[Key, TrialSpec] = field(default_factory=dict)
    figures: list[Figures] = field(default_factory=list)
    parities: dict[Key, Parity | None] = field(default_factory=dict)
    labels: Mapping[Key, str] = field(default_factory=dict)

    def frames(self) -> dict[str, pd.DataFrame]:
        """The frames, by name; each loses its columns as it is made, so that no two of them lie there twice."""
        said = {"label": [self.labels[key] for key in self.keys], **_said_by_parity(self.keys, self.parities)}
        return {
            "trials": to_pandas(_with_columns(self.summary.table(), said)),
            "errors": to_pandas(pa.concat_tables(self.errors)),
            **{name: to_pandas(kept.table()) for name, kept in self.columns.items()},
        }

    def lines(self) -> FigureLines:
        """The lines of tables, with their trials' names."""
        return self.gathered.lines(
            lambda key: TrialName.of(key[0], self.specs[key], self.labels[key], self.parities[key])
        )


def _read(runs: Sequence[store.Run], names: Collection[str], *, compared: bool) -> _Found:
    """Read each record once, for those of _OF_TRIAL that `names` has; trials beside each other only if `compared`."""
    columns = {name: _Columns(_OF_TRIAL[name][0]) for name in names}
    summary = _Columns(schema.SUMMARY)
    specs: list[TrialSpec] = []
    found = _Found(columns, summary, [schema.arrow_schema(schema.ERRORS).empty_table()])
    for run in runs:
        judged: list[LossesOnly] = []
        for trial in run.trials():
            with refusing_impossible_values(trial.folder.path):
                values = summary_values(trial)
                summary.add([values])
                for name, kept in columns.items():
                    kept.add(_OF_TRIAL[name][1](trial))
                if compared:
                    found.figures += figures_of(trial)
            found.keys.append((values["run_id"], values["trial_id"]))
            judged.append(LossesOnly.of(trial))
            if compared:
                with refusing_impossible_values(trial.folder.path):
                    found.gathered.add(trial, judged[-1])
            specs.append(trial.spec)
        judge = ParityJudge(judged)
        with refusing_impossible_values(run.folder.path):
            own = found.keys[len(found.keys) - len(judged) :]
            found.parities |= {key: judge.judge(one) for key, one in zip(own, judged, strict=True)}
            found.gathered.end_run(judged)
            if can_be_compared(judged):
                found.errors += [errors_table(pair) for pair in pairs(ended_trials(run), judge)]
    found.labels = dict(zip(found.keys, _labels(specs, [run_id for run_id, _ in found.keys]), strict=True))
    found.specs = dict(zip(found.keys, specs, strict=True))
    return found


def _said_by_parity(keys: Iterable[Key], parities: Mapping[Key, Parity | None]) -> dict[str, list[Any]]:
    """The columns that say how far each trial's losses and gradients' norms lie from the reference's, and whether they
    agree.
    """
    found = [parities[key] for key in keys]
    judged = [parity if parity is not None and parity.is_judged else None for parity in found]
    return {
        "loss_parity": [parity and parity.difference for parity in found],
        "norm_parity": [parity and parity.norm_difference for parity in found],
        "loss_parity_holds": [parity and parity.losses_agree for parity in judged],
        "norm_parity_holds": [
            None if parity is None or parity.norm_difference is None else parity.norms_agree for parity in judged
        ],
    }


def _with_columns(table: Any, columns: Mapping[str, list[Any]]) -> Any:
    """`table` with values in columns that only all trials together decide."""
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))
    return table


def _labels(specs: Sequence[TrialSpec], run_ids: Sequence[str]) -> list[str]:
    """Short names; where several runs hold the same trial, with the run behind it."""
    by_id = {spec.trial_id: spec for spec in specs}
    names = dict(zip(by_id, labels(list(by_id.values())), strict=True))
    counts = Counter(spec.trial_id for spec in specs)
    return [
        f"{names[spec.trial_id]} @ {run_id}" if counts[spec.trial_id] > 1 else names[spec.trial_id]
        for spec, run_id in zip(specs, run_ids, strict=True)
    ]


class _Columns:
    """Rows that become Arrow columns as soon as there are enough of them."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self._schema = schema.arrow_schema(types)
        self._waiting: Rows = []
        self._tables = [self._schema.empty_table()]

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        self._waiting.extend(rows)
        if len(self._waiting) * len(self._schema) >= _VALUES_AT_ONCE:
            self._flush()

    def table(self) -> Any:
        self._flush()
        return pa.concat_tables(self._tables)

    def _flush(self) -> None:
        self._tables.append(pa.Table.from_pylist(self._waiting, schema=self._schema))
        self._waiting = []
