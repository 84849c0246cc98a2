"""Trials as all exports have them, whichever tool they go to; they pass through one at a time.

A figure that is not available is left out: no tool here has a value for it, and 0 would be a lie.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zerobench.common.vocabulary import Category, Place
from zerobench.config.trial.trial import TrialSpec
from zerobench.records import store
from zerobench.records.instants import Instant
from zerobench.records.trials import Trial, ended_trials, losses_alone, refuse_impossible_values
from zerobench.report.export import schema
from zerobench.report.export.figures import FIGURES, Figure
from zerobench.report.export.rows import summary_row
from zerobench.report.figures.energy import energies
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.parity import ParityJudge, losses
from zerobench.report.figures.speed import slowest_steps
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.figures.trial_parts import largest_of
from zerobench.report.words.labels import labels

Setting = str | int | float | bool


@dataclass(frozen=True)
class StepPoint:
    """One step of a trial's curves; None: not available."""

    step_index: int
    at_s: float
    """End of the step, Unix time; the trial's start where the ranks marked nothing."""
    loss: float | None
    learning_rate: float | None
    step_s: float | None
    """Wall time on the slowest rank; of timed steps only."""


@dataclass(frozen=True)
class ExportRow:
    """A trial's figures in the form that all exports share."""

    trial: TrialFigures
    settings: Mapping[str, Setting]
    """Settings that define the trial, by column name or dotted DeepSpeed key."""
    figures: Mapping[Figure, float]
    peaks: Mapping[Place, Instant]
    """The steady step's peak instant of each place, on the rank where it is largest; its categories sum to it."""
    steps: Sequence[StepPoint]

    @property
    def start_s(self) -> float:
        """Start of the trial, Unix time; 0 for one that was never started."""
        return self.trial.started_at_s or 0.0

    @property
    def end_s(self) -> float:
        """End of the trial, Unix time; 0 for one that was never started."""
        return self.trial.ended_at_s or self.start_s


def exported_trials(run: store.Run) -> Iterator[ExportRow]:
    """The ended trials of `run`, skipped and failed ones included, in the plan's order.

    Raises UserError: a record is torn, corrupt or newer than this version.
    """
    ids = [trial.trial_id for trial in ended_trials(run)]
    with refuse_impossible_values(run.folder.trials):
        known = [losses_alone(run.trial(trial_id)) for trial_id in ids]
        names, judge, joules = labels([trial.spec for trial in known]), ParityJudge(known), energies(run)
    for name, trial_id in zip(names, ids, strict=True):
        trial = run.trial(trial_id)  # read anew, so that what was exported can be let go
        with refuse_impossible_values(trial.folder.path):
            figures = replace(trial_figures(trial, name), parity=judge.judge(trial))
            yield _export_row(figures, joules.get(trial_id), _steps(trial))


def _export_row(trial: TrialFigures, joules: float | None, steps: Sequence[StepPoint]) -> ExportRow:
    values = summary_row(trial) | {"energy_joules": joules}
    peaks = {place: largest_of(trial.steady, place) for place in Place} if trial.is_completed else {}
    return ExportRow(
        trial=trial,
        settings=settings(trial.spec),
        figures={figure: float(values[figure.column]) for figure in FIGURES if values[figure.column] is not None},
        peaks={place: instant for place, instant in peaks.items() if instant is not None and instant.total_bytes >= 0},
        steps=steps,
    )


def settings(spec: TrialSpec) -> dict[str, Setting]:
    """Settings that define a trial, as flat plain values: the axes, the hyperparameters, the DeepSpeed keys that it
    sets.
    """
    names = [name for name in schema.KEYS if hasattr(spec, name) and name != "model" and spec.knows(name)]
    known: dict[str, Any] = {"model": spec.model.name, **{name: getattr(spec, name) for name in names}}
    known |= spec.hyperparameters.model_dump() if spec.knows("hyperparameters") else {}
    known |= {f"ds_config.{key}": value for key, value in spec.ds_config.items()}
    known |= {"ds_config_file": spec.ds_config_file, "gpu": spec.prediction.gpu}
    del known["trial_id"], known["config_hash"]
    return {name: _setting(value) for name, value in known.items() if value is not None}


def _setting(value: Any) -> Setting:
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    # Where a sweep may write anything, JSON can hold half of a surrogate pair, which has no UTF-8 form.
    return str(value).encode("utf-8", "replace").decode("utf-8")


def categories(instant: Instant) -> dict[str, int]:
    """Bytes by category at `instant`; all under `unattributed` where the ledger could not look at that instant."""
    named = {category.value: size for category, size in instant.categories.items()}
    return named or {Category.UNATTRIBUTED.value: instant.total_bytes}


def _steps(trial: Trial) -> list[StepPoint]:
    """One point a step; losses that are not those of the whole batch, as one rank alone has them, are left out."""
    rank = next((rank for rank in trial.ranks if rank.losses or rank.step_times), None)
    curve = losses(trial)
    if rank is None:
        return []
    ends = {mark.step_index: mark.end_s for mark in sorted(rank.marks, key=lambda mark: mark.end_s)}
    indices = sorted({mark.step_index for mark in rank.marks if mark.kind == "timed"})
    times = {index: time.step_s for index, time in zip(indices, slowest_steps(trial), strict=False)}
    start = trial.record.started_at_s or 0.0
    return [
        StepPoint(
            step_index=index,
            at_s=ends.get(index, start),
            loss=curve[index] if index < len(curve) else None,
            learning_rate=rank.learning_rates[index] if index < len(rank.learning_rates) else None,
            step_s=times.get(index),
        )
        for index in range(max([len(rank.losses), *(index + 1 for index in times)]))
    ]
