"""What `--frontier` does: the tries of all cells together, round by round, until each knows how much fits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import typer

from zerobench.cli.plan import Plan, predict
from zerobench.errors import UserError
from zerobench.records import Status
from zerobench.report.choice import ROOM
from zerobench.report.plan.rows import PlanRow
from zerobench.report.plan.view import names, read_plan
from zerobench.report.render.terminal import print_parts
from zerobench.report.tables.plan_frontier import FrontierRow, frontier_part
from zerobench.spec.cluster import Cluster
from zerobench.spec.expand import PlannedTrial
from zerobench.spec.frontier import Frontier, search, search_together
from zerobench.spec.frontier_axes import FrontierAxis
from zerobench.spec.plan import document
from zerobench.spec.trial import TrialSpec, slug
from zerobench.store import STAMP

WITHIN = 0.01
"""How closely a frontier is found, as a share of it: an allocator's rounding says no more."""


def show_frontier(plan: Plan, axis: FrontierAxis, reports: Path) -> int:
    """Search along `axis` for each cell of `plan` and print what fits; 1 where a prediction failed.

    Each round is a run of its own, in a folder for the whole search under `reports`.
    """
    cells = {item.trial.trial_id: item.trial for item in plan.planned if item.skipped is None}
    folder = reports / f"{slug(plan.name)}-frontier-{axis.name}_{time.strftime(STAMP)}"
    found, rounds = search_frontiers(cells, axis, plan.cluster, folder)
    print_parts([frontier_part(axis, _rows(cells, found, rounds), plan.cluster)])
    typer.echo(f"runs: {folder}")
    return 0 if len(found) == len(cells) else 1


def search_frontiers(
    cells: Mapping[str, TrialSpec], axis: FrontierAxis, cluster: Cluster, folder: Path
) -> tuple[dict[str, Frontier], Rounds]:
    """The most that fits with room of each cell, by its key, and all that was tried, whose runs lie in `folder`."""
    rounds = Rounds(cells, axis, cluster, folder)
    capacity_bytes = int((1 - ROOM) * cluster.device_memory_bytes)
    searches = {
        key: search(capacity_bytes, start=axis.start(trial), most=axis.last(trial), within=WITHIN)
        for key, trial in cells.items()
    }
    return search_together(searches, rounds.peaks), rounds


class Rounds:
    """Makes the tries of a round in one run, and keeps what each of them needed."""

    def __init__(self, cells: Mapping[str, TrialSpec], axis: FrontierAxis, cluster: Cluster, folder: Path) -> None:
        self._cells, self._axis, self._cluster, self._folder = cells, axis, cluster, folder
        self._number = 0
        self.rows: dict[tuple[str, int], PlanRow] = {}
        """By cell and step."""

    def peaks(self, asked: Mapping[str, int]) -> dict[str, int | None]:
        """What each cell needs of its scarcer memory at the step asked; a cell whose trial failed is left out."""
        self._number += 1
        trials = {key: self._axis.at(self._cells[key], step) for key, step in asked.items()}
        planned = [PlannedTrial(trial=trial) for trial in trials.values()]
        name = f"round-{self._number}"
        result = predict(planned, name, document(name, planned), self._folder)
        if result.interrupted:
            raise KeyboardInterrupt
        shown, rows = read_plan(result.folder.path, self._cluster)
        status = {one.trial.spec.trial_id: one.trial.record.status for one in shown}
        by_id = {row.trial.spec.trial_id: row for row in rows}
        peaks: dict[str, int | None] = {}
        for key, trial in trials.items():
            if row := by_id.get(trial.trial_id):
                self.rows[key, asked[key]] = row
                peaks[key] = row.scaled_bytes
            elif status.get(trial.trial_id) in {Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY}:
                peaks[key] = None
        if not peaks:
            raise UserError(f"--frontier: no trial of {result.folder.path} completed; its records say why")
        return peaks


def _rows(cells: Mapping[str, TrialSpec], found: Mapping[str, Frontier], rounds: Rounds) -> list[FrontierRow]:
    labels = dict(zip(cells, names(list(cells.values())), strict=True))
    rows = []
    for key, frontier in found.items():
        largest = frontier.largest
        row = None if largest is None else rounds.rows.get((key, largest.value))
        rows.append(FrontierRow(labels[key], frontier, row))
    return rows
