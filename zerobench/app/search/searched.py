"""A plan whose cells are searched for the fastest variants, and the evidence that the search leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from zerobench.app.search.fastest import Cell, asked_of_formulas, fastest, search
from zerobench.app.search.keys import refine
from zerobench.app.search.plan import Plan
from zerobench.app.search.played_rounds import Rounds
from zerobench.common.errors import UserError
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.varied import FINE_RATIOS, Variations
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult
from zerobench.report.figures.trial import TrialFigures

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
        """Variants tried in the plan's world."""
        return sum(len(cell.tried) + len(cell.failed) for cell in self.cells)

    @property
    def rows(self) -> list[TrialFigures]:
        """The best of each cell that was tried."""
        return [row for cell in self.cells if (row := cell.shown) is not None]

    @property
    def best(self) -> TrialFigures | None:
        """The fastest of all, the simplest of those that are as fast."""
        return fastest(cell.best for cell in self.cells)

    @property
    def tried_hashes(self) -> set[str]:
        """The config_hash of each that was tried."""
        return {key for cell in self.cells for key in cell.tried}

    def document(self, chosen: TrialFigures | None) -> dict[str, Any]:
        """The evidence as JSON: the decision, all that was tried, how it was searched; bytes and seconds."""
        tried = [figures(row) for cell in self.cells for row in cell.tried.values()]
        return {
            "chosen": None if chosen is None else figures(chosen),
            "assumptions": [] if chosen is None or chosen.expected is None else chosen.expected.assumptions,
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


def figures(row: TrialFigures) -> dict[str, Any]:
    """Settings and results of a variant, as JSON; bytes and seconds."""
    expected = row.expected
    return row.spec.model_dump(mode="json", include=set(_VARIED)) | {
        "evidence": row.spec.evidence.value,
        "needed_bytes": row.device.needed_bytes,
        "capacity_bytes": row.device.capacity_bytes,
        "host_needed_bytes": row.host.needed_bytes,
        "has_room": row.has_room,
        "expected_step_s": None if expected is None else expected.step_s,
        "expected_step_interval_s": None if expected is None else (expected.low_s, expected.high_s),
        "expected_tokens_per_s": row.expected_tokens_per_s,
    }


def searched(plan: Plan, rounds: Rounds, observer: Observer, width: int | None = None) -> SearchOutcome:
    """Search the cells of `plan`, each for itself or (`width`) for the fastest of all, in the run of `rounds`.

    Raises UserError: no closed form is known of the model, which the search begins with.
    """
    trials = [item.trial for item in plan.planned if item.skipped is None]
    cells = [] if plan.varied is None else cells_by_formula(trials, plan.varied, plan.cluster)
    if not cells:
        raise UserError(
            f"--global-batch: no closed form for {plan.planned[0].trial.model.name}, which the search "
            "needs; give --micro-batch and --gradient-accumulation instead"
        )
    number = search(cells, rounds.make, observer.note, width)
    if plan.varied is not None and plan.varied.sets_keys:
        number += refine(cells, plan.cluster, rounds.make, observer.note)
    if rounds.result is None or rounds.result.interrupted:
        raise KeyboardInterrupt
    return SearchOutcome(rounds.result, cells, number)


def cells_by_formula(trials: Sequence[TrialSpec], variations: Variations, cluster: Cluster) -> Sequence[Cell]:
    """Variants of `trials` by closed forms; with finer shares of the optimizer offloaded where nothing fits with room
    by the usual ones.
    """
    cells = asked_of_formulas(trials, variations, cluster)
    if not variations.sets_keys or any(row.has_room for cell in cells for row in cell.by_formula.values()):
        return cells
    return asked_of_formulas(trials, replace(variations, ratios=FINE_RATIOS), cluster)
