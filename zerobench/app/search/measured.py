"""The frontier of a sweep, measured: the simulator is asked first, and the tries in fresh processes begin there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.app.search.plan_world import plan_world
from zerobench.app.search.predict import predict
from zerobench.app.search.rounds import Answer, Question, answer
from zerobench.common.errors import UserError
from zerobench.config.axes.axis_readers import AUTO
from zerobench.config.derived.frontier import Frontier
from zerobench.config.derived.frontier_axes import FrontierAxis
from zerobench.config.derived.machine import Machine
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.models.parameters import num_parameters
from zerobench.config.rules.rules import find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.sweep.expand import NOWHERE, PlannedTrial
from zerobench.config.sweep.plan import document
from zerobench.config.sweep.target import Targets
from zerobench.config.trial.trial import Evidence, Offload, PredictionSpec, TrialSpec
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.run.executor import Executor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult, run_sweep
from zerobench.records.store import load_run
from zerobench.report.figures.run.run_frontier import Limit, RunFrontierRow, words_of


@dataclass(frozen=True)
class MeasuredSearch:
    """A search by measurement: its axis, cells and limits."""

    name: str
    """The sweep's."""
    axis: FrontierAxis
    cells: Mapping[str, TrialSpec]
    """Trials by label."""
    skipped: Mapping[str, str]
    """Trials that cannot run at all, by id, with the reason."""
    limit: Limit
    machine: Machine
    executor: Executor

    @property
    def device(self) -> str | None:
        """The GPU that ranks compute on; None for CPU ranks."""
        return ", ".join(dict.fromkeys(self.machine.gpu_names)) or None

    @property
    def words(self) -> str:
        """Unit of the axis, for people."""
        return words_of(self.axis, self.device)

    def question(self, cells: Mapping[str, TrialSpec]) -> Question:
        """The question of the largest value for `cells`, which are these as measured or as simulated."""
        limit = self.limit
        return Question(self.axis, self.words, cells, limit.capacity_bytes, limit.needed_bytes, self._planned)

    def _planned(self, label: str, trial: TrialSpec) -> PlannedTrial:
        """The trial with the rule that it breaks where it is tried: what host memory cannot hold is not."""
        measured = trial.model_copy(update={"evidence": self.cells[label].evidence})
        situation = Situation(measured, self.machine, num_parameters(trial.model))
        return PlannedTrial(trial=trial, skipped=find_skip(situation))


def predicted_first(
    search: MeasuredSearch, folder: Path, observer: Observer, say: Callable[[str], None]
) -> dict[str, Frontier]:
    """The frontiers in the best world of this machine's devices (plan_world.py); those that have none are left out."""
    try:
        gpu = Targets(search.machine).prediction({"evidence": Evidence.SIMULATED, "gpu": AUTO, "rank": 0})["gpu"]
        world = Evidence.SIMULATED if gpu is None else plan_world(None, known_gpu(gpu), by_formula=False).evidence
    except UserError as error:
        say(f"not predicted; the search starts at the sweep's own values: {error}")
        return {}

    def make(planned: Sequence[PlannedTrial], name: str) -> RunResult:
        return predict(planned, measured_document(name, planned), folder, observer)

    cells = {label: _predicted(trial, gpu, world) for label, trial in search.cells.items()}
    answered = answer(search.question(cells), make)
    for label in cells:
        edge = _edge(answered.frontiers[label], search) if label in answered.frontiers else answered.given_up[label]
        say(f"  predicted, {world}: {label}: {edge}")
    return answered.frontiers


def _edge(frontier: Frontier, search: MeasuredSearch) -> str:
    if frontier.largest is None:
        return "nothing fits"
    return f"{frontier.largest.value * search.axis.unit:,} {search.words} fit"


def _predicted(trial: TrialSpec, gpu: str | None, world: Evidence) -> TrialSpec:
    swaps = Offload.NVME in trial.offloaded_to
    how = {"evidence": world, "prediction": PredictionSpec(gpu=gpu)}
    return trial.model_copy(update=how | ({"nvme_path": NOWHERE} if swaps else {}))


def measured(
    search: MeasuredSearch,
    predicted: Mapping[str, Frontier],
    folder: Path,
    observer: Observer,
    say: Callable[[str], None],
) -> Answer:
    """The frontiers by measured trials, whose runs lie in `folder`, each search begun near its prediction."""
    environment = capture_environment()

    def make(planned: Sequence[PlannedTrial], name: str) -> RunResult:
        from zerobench.report.export.tidy_tables import write_tables  # noqa: PLC0415 -- pandas, which a mistake need not pay for

        result = run_sweep(
            planned,
            measured_document(name, planned),
            environment=environment,
            reports=folder,
            executor=search.executor,
            observer=observer,
        )
        write_tables(load_run(result.folder.path))
        return result

    return answer(search.question(search.cells), make, predicted, say)


def measured_document(name: str, planned: Sequence[PlannedTrial]) -> dict[str, Any]:
    """The round as a sweep file would say it."""
    trial = planned[0].trial
    whole = document(name, planned)
    means_nothing = {"gpu"} if trial.evidence.needs_device else set()
    means_nothing |= {"rank"} if not trial.evidence.plays_one_rank else set()
    for axes in (whole["axes"], *whole["include"]):
        for axis in means_nothing:
            del axes[axis]
    shared = trial.model_dump(mode="json", include={"data", "hyperparameters", "timeout_s", "trust_remote_code"})
    return whole | shared


def run_frontier_rows(
    search: MeasuredSearch, predicted: Mapping[str, Frontier], answered: Answer
) -> list[RunFrontierRow]:
    """A row of the table for each cell."""
    rows = []
    for label in search.cells:
        edges = answered.frontiers.get(label)
        largest, too_large = (None, None) if edges is None else (edges.largest, edges.too_large)
        tried = answered.trial(label, largest), answered.trial(label, too_large)
        rows.append(RunFrontierRow(label, predicted.get(label), edges, *tried))
    return rows


def frontier_document(search: MeasuredSearch, rows: Sequence[RunFrontierRow]) -> dict[str, Any]:
    """Results as frontier.json holds them: values of the axis, bytes of the device."""

    def tries(frontier: Frontier | None) -> list[dict[str, int | None]]:
        listed = () if frontier is None else frontier.tries
        return [{"value": attempt.value * search.axis.unit, "needed_bytes": attempt.peak_bytes} for attempt in listed]

    def edge(frontier: Frontier | None) -> int | None:
        return None if frontier is None or frontier.largest is None else frontier.largest.value * search.axis.unit

    cells = [
        {
            "name": row.label,
            "config_hash": search.cells[row.label].config_hash,
            "predicted": edge(row.predicted),
            "measured": edge(row.measured),
            "tokens_per_s": row.speed.tokens_per_s if row.speed else None,
            "tflops_per_gpu": row.speed.tflops_per_gpu if row.speed else None,
            "predicted_tries": tries(row.predicted),
            "measured_tries": tries(row.measured),
        }
        for row in rows
    ]
    return {
        "sweep": search.name,
        "axis": search.axis.name,
        "capacity_bytes": search.limit.capacity_bytes,
        "capacity_is_given": search.limit.is_given,
        "cells": cells,
    }
