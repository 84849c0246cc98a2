"""The last round of `tune`: keys of the fastest that only the order in which a step's work is issued tells apart.

Closed forms know no order, nor does an emulated trial leave one; a simulated trial does, and it is replayed
(zerobench.timing.replay). Where the plan's world is another, the variants are simulated beside it: by the share that a
key makes the replay shorter, the step in the plan's world is taken to become shorter, too; what it needs of memory, and
whether that fits, its own trial there says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zerobench.report.plan.rows import PlanRow
from zerobench.search.fastest import AS_FAST, Cell, Say, Try, fastest, step_s
from zerobench.search.formula import formula_row
from zerobench.spec.cluster import Cluster
from zerobench.spec.trial import TrialSpec
from zerobench.spec.varied import key_changes
from zerobench.timing.step import Expected, scaled

Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Refined:
    """What the last round took."""

    num_rounds: int = 0
    replayed: Sequence[PlanRow] = ()
    """What was simulated beside the plan's world, the variant as it was first."""


@dataclass(frozen=True)
class _Variant:
    """The fastest with other keys, by formula and as it was replayed."""

    keys: Keys
    said: PlanRow
    row: PlanRow | None
    """None where its trial failed."""

    def gains(self, base_s: float) -> bool:
        """Whether its step is replayed in less, and there is room for it."""
        return self.row is not None and self.row.is_replayed and self.row.has_room and step_s(self.row) < base_s


def refine(cells: Sequence[Cell], cluster: Cluster, make: Try, say: Say, simulate: Try | None = None) -> Refined:
    """Try each such key of the fastest by itself, then those together that made its step shorter.

    `simulate`: the world that leaves an order, where `make`, the plan's own, is another.
    """
    best = fastest(cell.best for cell in cells)
    if best is None or not (changes := key_changes(best.trial.spec)) or not (simulate or best.is_replayed):
        return Refined()
    cell, said = next((cell, cell.by_formula[key]) for cell in cells for key, row in cell.tried.items() if row is best)

    def replayed(asked: Sequence[Keys]) -> list[_Variant]:
        known = [(keys, row) for keys in asked if (row := formula_row(_with(said.trial.spec, keys), cluster))]
        say(f"keys of the fastest: {len(known)} variants")
        rows = _by_hash((simulate or make)([row for _, row in known]))
        return [_Variant(keys, row, rows.get(row.trial.spec.config_hash)) for keys, row in known]

    [base, *variants] = replayed([{}, *changes]) if simulate else [_Variant({}, said, best), *replayed(changes)]
    if base.row is None or not base.row.is_replayed:
        return Refined(1)
    together = _together(variants, step_s(base.row))
    variants += replayed([together]) if together else []
    if simulate:
        _take(cell, best, base.row, variants, make)
    else:
        for variant in variants:
            cell.note(variant.said, variant.row)
    beside = [one.row for one in (base, *variants) if one.row is not None] if simulate else []
    return Refined(2 if together else 1, beside)


def _with(trial: TrialSpec, keys: Keys) -> TrialSpec:
    return trial.model_copy(update={"ds_config": {**trial.ds_config, **keys}})


def _by_hash(rows: Sequence[PlanRow]) -> dict[str, PlanRow]:
    return {row.trial.spec.config_hash: row for row in rows}


def _together(variants: Sequence[_Variant], base_s: float) -> Keys:
    """The keys that made a step shorter, of two values of one that which made it shortest; none where it is but one."""
    gains = sorted((one for one in variants if one.gains(base_s)), key=lambda one: step_s(one.row), reverse=True)
    together = {key: value for one in gains for key, value in one.keys.items()}
    return together if len(together) > 1 else {}


def _take(cell: Cell, best: PlanRow, base: PlanRow, variants: Sequence[_Variant], make: Try) -> None:
    """Have those that gain enough tried in the plan's world, where each takes what its replay does of `base`'s."""
    gains = [one for one in variants if one.gains(step_s(base) / (1 + AS_FAST))]
    made = _by_hash(make([one.said for one in gains])) if gains else {}
    for one in gains:
        row = made.get(one.said.trial.spec.config_hash)
        told = _as_replayed(best.expected, step_s(one.row) / step_s(base), one.keys)
        cell.note(one.said, None if row is None else replace(row, expected=told))


def _as_replayed(found: Expected | None, share: float, keys: Keys) -> Expected | None:
    names = ", ".join(key.rpartition(".")[2] for key in keys)
    words = f"{names}: {share:.3f} of the step, as a simulated one is replayed"
    return None if found is None else scaled(found, share, words)
