"""The tries of a measured frontier: what each round runs, simulated or measured, and what it says of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.cli.frontier import WITHIN
from zerobench.cli.live import PlainView
from zerobench.cli.plan import predict
from zerobench.errors import UserError
from zerobench.report.run_frontier import Limit, ran_out, words_of
from zerobench.report.trials import LazyTrial, completed, ended_trials
from zerobench.run.environment import capture_environment
from zerobench.run.runner import RunResult, run_sweep
from zerobench.run.site import Site
from zerobench.spec.axis_readers import AUTO
from zerobench.spec.expand import NOWHERE, PlannedTrial
from zerobench.spec.frontier import Frontier, Search, search, search_together, slope
from zerobench.spec.frontier_axes import FrontierAxis
from zerobench.spec.machine import Machine
from zerobench.spec.parameters import count_parameters
from zerobench.spec.plan import document
from zerobench.spec.rules import why_skipped
from zerobench.spec.situation import Situation
from zerobench.spec.target import Targets
from zerobench.spec.trial import Evidence, Offload, PredictionSpec, TrialSpec
from zerobench.store import load_run
from zerobench.units import format_bytes

Make = Callable[[Sequence[PlannedTrial], str], RunResult]
"""Runs the tries of a round, whose name it is told."""


@dataclass(frozen=True)
class Hunt:
    """What is searched, where, and within what."""

    name: str
    """The sweep's."""
    axis: FrontierAxis
    cells: Mapping[str, TrialSpec]
    """By label."""
    skipped: Mapping[str, str]
    """Trials that cannot run at all, by id, with the reason."""
    limit: Limit
    machine: Machine
    site: Site

    @property
    def device(self) -> str | None:
        """The GPU that ranks compute on; None for CPU ranks."""
        return ", ".join(dict.fromkeys(self.machine.gpu_names)) or None

    @property
    def words(self) -> str:
        """What the axis counts."""
        return words_of(self.axis, self.device)

    def search(self, trial: TrialSpec, near: Frontier | None = None) -> Search:
        """A search for `trial`: from its own value, or near what an earlier search found."""
        capacity_bytes, most = self.limit.capacity_bytes, self.axis.last(trial)
        if near is None:
            return search(capacity_bytes, start=self.axis.start(trial), most=most, within=WITHIN)
        start = 1 if near.largest is None else near.largest.value
        steepness = slope(near.tries, capacity_bytes)
        return search(capacity_bytes, start=start, most=most, within=WITHIN, bytes_per_step=steepness)


def predict_frontiers(hunt: Hunt, folder: Path, say: Callable[[str], None]) -> dict[str, Frontier]:
    """The frontiers by simulation of this machine's devices; those that cannot be simulated are left out."""
    try:
        gpu = Targets(hunt.machine).prediction({"evidence": Evidence.SIMULATED, "gpu": AUTO, "rank": 0})["gpu"]
    except UserError as error:
        say(f"not predicted, so that the search begins at the sweep's own values: {error}")
        return {}
    cells = {label: _simulated(trial, gpu) for label, trial in hunt.cells.items()}
    rounds = Rounds(cells, hunt, lambda planned, name: predict(planned, name, _document(name, planned), folder))
    found = search_together({label: hunt.search(trial) for label, trial in cells.items()}, rounds.peaks)
    for label in cells:
        say(f"  predicted: {label}: {_edge(found[label], hunt) if label in found else rounds.given_up[label]}")
    return found


def _edge(found: Frontier, hunt: Hunt) -> str:
    if found.largest is None:
        return "nothing fits"
    return f"{found.largest.value * hunt.axis.unit:,} {hunt.words} fit"


def searches(hunt: Hunt, predicted: Mapping[str, Frontier]) -> dict[str, Search]:
    """A measured search for each cell, from its prediction where there is one."""
    return {label: hunt.search(trial, predicted.get(label)) for label, trial in hunt.cells.items()}


def _simulated(trial: TrialSpec, gpu: str | None) -> TrialSpec:
    swaps = Offload.NVME in {trial.offload_optimizer, trial.offload_param}
    how = {"evidence": Evidence.SIMULATED, "prediction": PredictionSpec(gpu=gpu)}
    return trial.model_copy(update=how | ({"nvme_path": NOWHERE} if swaps else {}))


def measuring(hunt: Hunt, folder: Path, screen: PlainView) -> Rounds:
    """Rounds of measured trials, whose runs lie in `folder`, in sight of the user."""
    environment = capture_environment()

    def measure(planned: Sequence[PlannedTrial], name: str) -> RunResult:
        from zerobench.report.frames.tidy_tables import write_tables  # noqa: PLC0415 -- pandas, which a mistake need not pay for

        result = run_sweep(
            planned,
            sweep_name=name,
            sweep=_document(name, planned),
            environment=environment,
            reports=folder,
            site=hunt.site,
            observer=screen,
        )
        write_tables(load_run(result.folder.path))
        return result

    return Rounds(hunt.cells, hunt, measure, screen.say)


def _document(name: str, planned: Sequence[PlannedTrial]) -> dict[str, Any]:
    """The round as a sweep file would say it."""
    trial = planned[0].trial
    said = document(name, planned)
    means_nothing = {"gpu"} if trial.evidence.needs_device else set()
    means_nothing |= {"rank"} if not trial.evidence.plays_one_rank else set()
    for axes in (said["axes"], *said["include"]):
        for axis in means_nothing:
            del axes[axis]
    shared = trial.model_dump(mode="json", include={"data", "hyperparameters", "timeout_s", "trust_remote_code"})
    return said | shared


class Rounds:
    """Makes the tries of a round in one run, and keeps what became of each."""

    def __init__(
        self, cells: Mapping[str, TrialSpec], hunt: Hunt, make: Make, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._cells, self._hunt, self._make, self._say = cells, hunt, make, say
        self._number = 0
        self.trials: dict[tuple[str, int], LazyTrial] = {}
        """By label and step."""
        self.given_up: dict[str, str] = {}
        """Labels of searches that got no answer, with the reason."""

    def peaks(self, asked: Mapping[str, int]) -> dict[str, int | None]:
        """What each cell takes at the step asked, None where memory ended it; failed ones are left out.

        Raises KeyboardInterrupt: someone stopped the run.
        """
        self._number += 1
        tries = {label: self._hunt.axis.at(self._cells[label], step) for label, step in asked.items()}
        planned = [self._planned(trial, self._hunt.cells[label].evidence) for label, trial in tries.items()]
        result = self._make(planned, f"round-{self._number}")
        if result.interrupted:
            raise KeyboardInterrupt
        there = {trial.trial_id: trial for trial in ended_trials(load_run(result.folder.path))}
        peaks: dict[str, int | None] = {}
        for label, spec in tries.items():
            trial = there[spec.trial_id]
            self.trials[label, asked[label]] = trial
            needed_bytes = self._hunt.limit.needed_bytes(trial) if completed(trial) else None
            if needed_bytes is not None or ran_out(trial):
                peaks[label] = needed_bytes
                self._say(f"  {label}: {self._verdict(asked[label], needed_bytes, trial)}")
            else:
                why = trial.record.reason or f"{trial.record.status}, and nobody watched its memory"
                self.given_up[label] = f"{why}; see {result.folder.trial(spec.trial_id).path}"
        return peaks

    def _planned(self, trial: TrialSpec, evidence: Evidence) -> PlannedTrial:
        """The trial with the rule that it breaks where it is tried: what host memory cannot hold is not."""
        counts = count_parameters(trial.model)
        measured = trial.model_copy(update={"evidence": evidence})
        situation = Situation(measured, self._hunt.machine, None if counts is None else counts.total)
        return PlannedTrial(trial=trial, skipped=why_skipped(situation))

    def _verdict(self, step: int, needed_bytes: int | None, trial: LazyTrial) -> str:
        what = f"{step * self._hunt.axis.unit:,} {self._hunt.words}"
        if needed_bytes is None:
            return f"{what} do not fit: {trial.record.reason or trial.record.status}"
        capacity_bytes = self._hunt.limit.capacity_bytes
        fit = "fit" if needed_bytes <= capacity_bytes else "do not fit"
        return f"{what} {fit}: {format_bytes(needed_bytes)} of {format_bytes(capacity_bytes)}"
