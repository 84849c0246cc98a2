"""The last round of `tune`: keys of the fastest that only the order in which a step's work is issued tells apart.

Closed forms know no order. Emulated and simulated trials leave one, which is replayed (estimate/clock/replay.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerobench.app.search.fastest import Cell, Say, Try, fastest, step_s
from zerobench.app.search.formula import formula_row
from zerobench.common.units import counted
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.varied import key_changes
from zerobench.config.trial.trial import TrialSpec
from zerobench.report.figures.trial import TrialFigures

Keys = Mapping[str, Any]


@dataclass(frozen=True)
class _Variant:
    """The fastest with other keys, by formula and as it was replayed."""

    keys: Keys
    by_formula: TrialFigures
    row: TrialFigures | None
    """None where its trial failed."""

    def gains(self, base_s: float) -> bool:
        """True if its step is replayed in less, and there is room for it."""
        return self.row is not None and self.row.is_replayed and self.row.has_room and step_s(self.row) < base_s


def refine(cells: Sequence[Cell], cluster: Cluster, make: Try, say: Say) -> int:
    """Try each such key of the fastest by itself, then those together that made its step shorter; gives how many rounds
    that took, none where its trial left no order.
    """
    best = fastest(cell.best for cell in cells)
    if best is None or not best.is_replayed or not (changes := key_changes(best.spec)):
        return 0
    cell, by_formula = next(
        (cell, cell.by_formula[key]) for cell in cells for key, row in cell.tried.items() if row is best
    )

    def replayed(asked: Sequence[Keys]) -> list[_Variant]:
        known = [(keys, row) for keys in asked if (row := formula_row(_with(by_formula.spec, keys), cluster))]
        say(f"DeepSpeed keys of the fastest: {counted(len(known), 'variant')}")
        rows = {row.spec.config_hash: row for row in make([row for _, row in known])}
        return [_Variant(keys, row, rows.get(row.spec.config_hash)) for keys, row in known]

    variants = replayed(changes)
    together = _together(variants, step_s(best))
    variants += replayed([together]) if together else []
    for variant in variants:
        cell.note(variant.by_formula, variant.row)
    return 2 if together else 1


def _with(trial: TrialSpec, keys: Keys) -> TrialSpec:
    return trial.model_copy(update={"ds_config": {**trial.ds_config, **keys}})


def _together(variants: Sequence[_Variant], base_s: float) -> Keys:
    """The keys that made a step shorter, of two values of one that which made it shortest; none where it is but one."""
    gains = sorted(
        (variant for variant in variants if variant.gains(base_s)),
        key=lambda variant: step_s(variant.row),
        reverse=True,
    )
    together = {key: value for variant in gains for key, value in variant.keys.items()}
    return together if len(together) > 1 else {}
