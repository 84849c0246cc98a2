"""The fastest variants of a plan's cells: all asked of the closed forms, the promising ones tried in the plan's world.

The closed forms say in milliseconds what a variant needs and how long its step takes; what they cannot know (gaps of
the allocator, transient copies) a trial tells, and what is learnt of one variant's memory holds for those like it. So
rounds of trials follow, each of the variants that are still expected to be faster than what was found to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zerobench.report.choice import ROOM, Option, choose
from zerobench.report.plan.rows import PlanRow, recommended
from zerobench.search.formula import formula_row
from zerobench.spec.cluster import Cluster
from zerobench.spec.rules import why_skipped
from zerobench.spec.situation import Situation
from zerobench.spec.trial import TrialSpec
from zerobench.spec.varied import Varied, key_changes
from zerobench.units import counted

AS_FAST = 0.01
"""A shorter step than another's by less than this share is no gain: the simpler of the two is taken."""
MOST_ROUNDS = 4
_REFUSED = 1.3
"""How much more than by formula a trial is taken to need that ran out of memory and did not say by how much."""
_FAR_TOO_LARGE = 1.5
"""By formula, of the memory there is: larger micro batches of the family are not asked for."""

Try = Callable[[Sequence[PlanRow]], Sequence[PlanRow]]
"""From variants by formula to what they come to in the plan's world; those that failed are left out."""
Say = Callable[[str], None]


@dataclass
class Cell:
    """One stage and offload: its variants by formula, and what became of those that were tried."""

    by_formula: dict[str, PlanRow]
    """By config_hash."""
    tried: dict[str, PlanRow] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @property
    def best(self) -> PlanRow | None:
        """The fastest that was tried and fits with room."""
        choice = recommended(self.tried.values(), AS_FAST)
        return None if choice is None else choice.best

    @property
    def shown(self) -> PlanRow | None:
        """The best, or where none fits that which comes nearest."""
        return self.best or max(self.tried.values(), key=lambda row: row.room, default=None)

    def next(self) -> PlanRow | None:
        """The variant to try next, as the formula has it; None where none promises more than what was found."""
        left = [row for key, row in self.by_formula.items() if key not in self.tried and key not in self.failed]
        choice = choose(left, self._corrected, AS_FAST)
        if choice is None:
            is_begun = self.tried or self.failed or not left
            return None if is_begun else max(left, key=lambda row: row.option.room)
        return choice.best if self.best is None or is_faster(choice.best, self.best) else None

    def _corrected(self, row: PlanRow) -> Option:
        """As the rule of choice sees it, its room by what trials of variants like it needed."""
        return replace(row.option, room=1 - (1 - row.option.room) * self._factor(row))

    def _factor(self, row: PlanRow) -> float:
        """What trials needed beyond the formula: the most of those that recompute alike, else of all."""
        factors = {
            key: _REFUSED if tried.device.was_refused and tried.room >= 0 else (1 - tried.room) / (1 - said.option.room)
            for key, tried in self.tried.items()
            if (said := self.by_formula[key]) is not None and said.option.room < 1
        }
        alike = [
            factor for key, factor in factors.items() if self.by_formula[key].option.recomputed == row.option.recomputed
        ]
        return max(alike or factors.values(), default=1.0)


def is_faster(row: PlanRow, than: PlanRow) -> bool:
    """Whether it is expected to gain more than AS_FAST; never so where a time is not known."""
    if row.expected is None or than.expected is None:
        return False
    return (1 + AS_FAST) * row.expected.step_s < than.expected.step_s


def asked_of_formulas(cells: Sequence[TrialSpec], varied: Varied, cluster: Cluster) -> list[Cell]:
    """The cells with all of their variants that a closed form is known of and no rule forbids."""
    found = [Cell({row.trial.spec.config_hash: row for row in _rows(cell, varied, cluster)}) for cell in cells]
    return [cell for cell in found if cell.by_formula]


def _rows(cell: TrialSpec, varied: Varied, cluster: Cluster) -> Iterator[PlanRow]:
    for family in varied.families(cell):
        if why_skipped(Situation(family[0], cluster.machine, None)) is not None:
            continue
        for number, trial in enumerate(family):
            row = formula_row(trial, cluster)
            if row is None or (number and 1 - row.option.room > _FAR_TOO_LARGE):
                break
            yield row


def search(cells: Sequence[Cell], make: Try, say: Say, width: int | None = None) -> int:
    """Try variants in rounds, until none is expected to be faster than what was found; how many rounds it took.

    Without `width` each cell is searched for itself; with it, each round has at most so many trials, of the cells that
    are expected to be fastest, and ends where none promises more than the best of all.
    """
    for number in range(1, MOST_ROUNDS + 1):
        picks = {id(row): (cell, row) for cell in cells if (row := cell.next()) is not None}
        chosen = _promising([row for _, row in picks.values()], cells, width)
        if not chosen:
            return number - 1
        say(f"round {number}: {len(chosen)} of {counted(sum(len(cell.by_formula) for cell in cells), 'variant')}")
        _make([(picks[id(pick)][0], pick) for pick in chosen], make)
    return MOST_ROUNDS


def _make(picks: Sequence[tuple[Cell, PlanRow]], make: Try) -> None:
    """Try each cell's pick, and let it know."""
    rows = {row.trial.spec.config_hash: row for row in make([pick for _, pick in picks])}
    for cell, pick in picks:
        key = pick.trial.spec.config_hash
        if key in rows:
            cell.tried[key] = rows[key]
        else:
            cell.failed.add(key)


def refine(cells: Sequence[Cell], cluster: Cluster, make: Try, say: Say) -> int:
    """Try keys of the fastest that only a replay of its step tells apart, then those together that made it shorter; how
    many rounds it took: none where its time is not of a replay.
    """
    found = _replayed_best(cells)
    if found is None:
        return 0
    cell, said, best = found
    changes = key_changes(said.trial.spec)
    steps = _with_keys(cell, said, changes, cluster, make, say)
    gains = [
        change for step_s, change in sorted(zip(steps, changes, strict=True), key=_first) if step_s < _step_s(best)
    ]
    together = {key: value for change in reversed(gains) for key, value in change.items()}
    if len(together) < 2:
        return bool(changes)
    _with_keys(cell, said, [together], cluster, make, say)
    return 2


def _first(pair: tuple[float, dict[str, Any]]) -> float:
    return pair[0]


def _replayed_best(cells: Sequence[Cell]) -> tuple[Cell, PlanRow, PlanRow] | None:
    """The fastest that was tried, its cell, and what the formula said of it."""
    best = fastest(cell.best for cell in cells)
    if best is None or not best.is_replayed:
        return None
    return next((cell, cell.by_formula[key], best) for cell in cells for key, row in cell.tried.items() if row is best)


def _with_keys(
    cell: Cell, said: PlanRow, changes: Sequence[dict[str, Any]], cluster: Cluster, make: Try, say: Say
) -> list[float]:
    """Seconds of a step of the variant with each change of keys, infinite where it does not fit or was not tried."""
    rows = [formula_row(_changed(said.trial.spec, change), cluster) for change in changes]
    asked = [row for row in rows if row is not None]
    if asked:
        say(f"DeepSpeed keys of the fastest: {counted(len(asked), 'variant')}")
        cell.by_formula.update({row.trial.spec.config_hash: row for row in asked})
        _make([(cell, row) for row in asked], make)
    tried = [None if row is None else cell.tried.get(row.trial.spec.config_hash) for row in rows]
    return [_step_s(row) if row is not None and row.has_room else float("inf") for row in tried]


def _changed(trial: TrialSpec, keys: dict[str, Any]) -> TrialSpec:
    return trial.model_copy(update={"ds_config": {**trial.ds_config, **keys}})


def _promising(picks: Sequence[PlanRow], cells: Sequence[Cell], width: int | None) -> Sequence[PlanRow]:
    if width is None:
        return picks
    best = fastest(cell.best for cell in cells)
    gains = [row for row in picks if best is None or (row.has_room and is_faster(row, best))]
    return sorted(gains, key=lambda row: (-min(row.room, ROOM), _step_s(row)))[:width]


def _step_s(row: PlanRow) -> float:
    return float("inf") if row.expected is None else row.expected.step_s


def fastest(rows: Iterable[PlanRow | None]) -> PlanRow | None:
    """The one of `rows` that is expected to be fastest of those that fit with room, the simplest within AS_FAST."""
    choice = recommended([row for row in rows if row is not None], AS_FAST)
    return None if choice is None else choice.best
