"""A plan whose cells are searched: each round's trials join one run, which then holds all that was tried."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerobench.errors import UserError
from zerobench.records import Status
from zerobench.report.plan.rows import PlanRow
from zerobench.report.plan.view import plan_row
from zerobench.report.trials import ended_trials, is_whole
from zerobench.running.observer import Observer
from zerobench.running.runner import RunResult
from zerobench.search.fastest import Cell, asked_of_formulas, fastest, search
from zerobench.search.keys import refine
from zerobench.search.plan import Plan
from zerobench.search.predict import extend, predict
from zerobench.spec.cluster import Cluster
from zerobench.spec.trial import Evidence, TrialSpec
from zerobench.spec.varied import FINE_RATIOS, Variations
from zerobench.store import load_run
from zerobench.sweeping.plan import checked, document, in_world

MICRO_BATCHES_PLAYED = 3
"""Of a step, in a trial: the first one makes gradients, the second adds to them, the last hands them on; all others are
like the second."""
WIDTH = 4
"""Trials of a round of `tune`: what two cores predict in ten seconds."""


@dataclass(frozen=True)
class SearchOutcome:
    result: RunResult
    cells: Sequence[Cell]
    num_rounds: int

    @property
    def num_variants(self) -> int:
        """All that the closed forms were asked for."""
        return sum(len(cell.by_formula) for cell in self.cells)

    @property
    def num_tried(self) -> int:
        """Those that were tried in the plan's world."""
        return sum(len(cell.tried) + len(cell.failed) for cell in self.cells)

    @property
    def rows(self) -> list[PlanRow]:
        """Of each cell that was tried the best."""
        return [row for cell in self.cells if (row := cell.shown) is not None]

    @property
    def best(self) -> PlanRow | None:
        """The fastest of all, the simplest of those that are as fast."""
        return fastest(cell.best for cell in self.cells)

    @property
    def document(self) -> dict[str, Any]:
        """The evidence as JSON: what was chosen, all that was tried, how it was searched; bytes and seconds."""
        tried = [figures(row) for cell in self.cells for row in cell.tried.values()]
        return {
            "chosen": None if self.best is None else figures(self.best),
            "assumptions": [] if self.best is None or self.best.expected is None else self.best.expected.assumptions,
            "num_variants": self.num_variants,
            "num_tried": self.num_tried,
            "num_rounds": self.num_rounds,
            "tried": sorted(tried, key=lambda attempt: (not attempt["has_room"], attempt["expected_step_s"] or 0.0)),
        }


_VARIED = (
    "strategy",
    "offload_optimizer",
    "offload_param",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "activation_checkpointing",
    "ds_config",
)


def figures(row: PlanRow) -> dict[str, Any]:
    """What was asked of a variant and what it came to, as JSON; bytes and seconds."""
    expected = row.expected
    return row.trial.spec.model_dump(mode="json", include=set(_VARIED)) | {
        "evidence": row.evidence.value,
        "needed_bytes": row.device.needed_bytes,
        "capacity_bytes": row.device.capacity_bytes,
        "host_needed_bytes": row.host.needed_bytes,
        "has_room": row.has_room,
        "expected_step_s": None if expected is None else expected.step_s,
        "expected_step_interval_s": None if expected is None else (expected.low_s, expected.high_s),
        "expected_tokens_per_s": row.expected_tokens_per_s,
    }


def searched(plan: Plan, reports: Path, observer: Observer, width: int | None = None) -> SearchOutcome:
    """Search the cells of `plan`, each for itself or (`width`) for the fastest of all, in a run under `reports`.

    Raises UserError: no closed form is known of the model, which the search begins with.
    """
    trials = [item.trial for item in plan.planned if item.skipped is None]
    cells = [] if plan.varied is None else cells_by_formula(trials, plan.varied, plan.cluster)
    if not cells:
        raise UserError(
            f"--global-batch: no closed form for {plan.planned[0].trial.model.name}, which the search "
            "needs; give --micro-batch and --gradient-accumulation instead"
        )
    rounds = Rounds(plan, reports, observer)
    number = search(cells, rounds.make, observer.note, width)
    if plan.varied is not None and plan.varied.sets_keys:
        number += refine(cells, plan.cluster, rounds.make, observer.note)
    if rounds.result is None or rounds.result.interrupted:
        raise KeyboardInterrupt
    return SearchOutcome(rounds.result, cells, number)


def cells_by_formula(trials: Sequence[TrialSpec], variations: Variations, cluster: Cluster) -> Sequence[Cell]:
    """What the closed forms say of the variants of `trials`; with finer shares of the optimizer offloaded where nothing
    fits with room by the usual ones.
    """
    cells = asked_of_formulas(trials, variations, cluster)
    if not variations.sets_keys or any(row.has_room for cell in cells for row in cell.by_formula.values()):
        return cells
    return asked_of_formulas(trials, replace(variations, ratios=FINE_RATIOS), cluster)


class Rounds:
    """Predicts the trials of each round, in one run."""

    def __init__(self, plan: Plan, reports: Path, observer: Observer) -> None:
        self._plan, self._reports, self._observer = plan, reports, observer
        skipped = [item for item in plan.planned if item.skipped is not None]
        if (varied := plan.varied) is not None:  # as all others, so that names need not tell their batches apart
            skipped = [item.model_copy(update={"trial": varied.smallest(item.trial)}) for item in skipped]
        self._planned = skipped
        self.result: RunResult | None = None

    def make(self, variants: Sequence[PlanRow]) -> Sequence[PlanRow]:
        """The rows of `variants`, which are by formula, as the plan's world has them; without those that failed."""
        world = self._plan.world.evidence
        specs = [shortened(row.trial.spec) for row in variants]
        self._planned += in_world(checked(specs, self._plan.cluster), world)
        self.result = self._run(document(self._plan.name, self._planned))
        trials = {
            trial.spec.config_hash: trial
            for trial in ended_trials(load_run(self.result.whole().path))
            if is_whole(trial) and trial.spec.evidence is world
        }
        made = [trials[spec.config_hash] for spec in specs if spec.config_hash in trials]
        rows = [plan_row(trial, trial.spec.strategy, self._plan.cluster) for trial in made]
        if not trials:
            other = "; or try --evidence simulated" if world is Evidence.EMULATED else ""
            raise UserError(f"no trial of {self.result.folder.path} completed; see its records{other}")
        return rows

    def _run(self, sweep: dict[str, Any]) -> RunResult:
        if self.result is None:
            return predict(self._planned, sweep, self._reports, self._observer)
        more = extend(self.result.folder, self._planned, sweep, self._observer)
        statuses: Counter[Status] = self.result.statuses + more.statuses
        return RunResult(self.result.folder, statuses, interrupted=more.interrupted)


def shortened(spec: TrialSpec) -> TrialSpec:
    """`spec` with as many micro-batches to play as it takes to see all that its memory ever holds."""
    prediction = spec.prediction.model_copy(update={"micro_batches": MICRO_BATCHES_PLAYED})
    return spec.model_copy(update={"prediction": prediction})
