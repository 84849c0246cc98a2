"""The fastest variants of a plan's cells: all asked of the closed forms, the promising ones tried in the plan's world.

The closed forms say in milliseconds what a variant needs and how long its step takes; what they cannot know (gaps of
the allocator, transient copies) a trial tells, and what is learnt of one variant's memory holds for those like it. So
rounds of trials follow, each of the variants that are still expected to be faster than what was found to fit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from zerobench.app.search.formula import formula_row
from zerobench.common.units import counted
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.varied import Variations
from zerobench.config.rules.rules import find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.trial.trial import TrialSpec
from zerobench.report.explain.choice import AS_FAST, choose, recomputed_share
from zerobench.report.figures.fit import ROOM
from zerobench.report.figures.trial import TrialFigures

MOST_ROUNDS = 4
_REFUSED = 1.3
"""Factor on the formula's need for a trial that ran out of memory and did not say by how much."""
_FAR_TOO_LARGE = 1.5
"""Need by formula, as a share of the memory, from which larger micro batches of the family are left out."""

Try = Callable[[Sequence[TrialFigures]], Sequence[TrialFigures]]
"""From variants by formula to what they come to in the plan's world; those that failed are left out."""
Say = Callable[[str], None]


@dataclass
class Cell:
    """One stage and offload: its variants by formula, and what became of those that were tried."""

    by_formula: dict[str, TrialFigures]
    """Figures by config_hash."""
    tried: dict[str, TrialFigures] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @property
    def best(self) -> TrialFigures | None:
        """The fastest that was tried and fits with room."""
        choice = choose(self.tried.values())
        return None if choice is None else choice.best

    @property
    def shown(self) -> TrialFigures | None:
        """The best, or where none fits that which comes nearest."""
        return self.best or max(self.tried.values(), key=lambda row: row.room, default=None)

    def next(self) -> TrialFigures | None:
        """The variant to try next, as the formula has it; None where none promises more than what was found."""
        left = [row for key, row in self.by_formula.items() if key not in self.tried and key not in self.failed]
        choice = choose(left, self._corrected_room)
        if choice is None:
            is_begun = self.tried or self.failed or not left
            return None if is_begun else max(left, key=lambda row: row.room)
        return choice.best if self.best is None or is_faster(choice.best, self.best) else None

    def note(self, by_formula: TrialFigures, row: TrialFigures | None) -> None:
        """Record a variant's result, which closed forms have as `by_formula`; None where its trial failed."""
        key = by_formula.spec.config_hash
        self.by_formula.setdefault(key, by_formula)
        if row is None:
            self.failed.add(key)
        else:
            self.tried[key] = row

    def _corrected_room(self, row: TrialFigures) -> float:
        """Its room, corrected by the needs of trials of variants like it."""
        return 1 - (1 - row.room) * self._factor(row)

    def _factor(self, row: TrialFigures) -> float:
        """Factor by which trials exceeded the formula: the largest of those that recompute alike, else of all."""
        factors = {
            key: _REFUSED
            if tried.device.was_refused and (tried.need is None or tried.room >= 0)
            else (1 - tried.room) / (1 - formula.room)
            for key, tried in self.tried.items()
            if (formula := self.by_formula[key]) is not None and formula.room < 1
        }
        alike = [
            factor
            for key, factor in factors.items()
            if recomputed_share(self.by_formula[key].spec) == recomputed_share(row.spec)
        ]
        return max(alike or factors.values(), default=1.0)


def is_faster(row: TrialFigures, than: TrialFigures) -> bool:
    """True if it is expected to gain more than AS_FAST; false if a time is not known."""
    if row.expected is None or than.expected is None:
        return False
    return (1 + AS_FAST) * row.expected.step_s < than.expected.step_s


def asked_of_formulas(cells: Sequence[TrialSpec], varied: Variations, cluster: Cluster) -> list[Cell]:
    """The cells with all of their variants that a closed form is known of and no rule forbids."""
    known = [Cell({row.spec.config_hash: row for row in _rows(cell, varied, cluster)}) for cell in cells]
    return [cell for cell in known if cell.by_formula]


def _rows(cell: TrialSpec, varied: Variations, cluster: Cluster) -> Iterator[TrialFigures]:
    for family in varied.families(cell):
        if find_skip(Situation(family[0], cluster.machine, None)) is not None:
            continue
        for number, trial in enumerate(family):
            row = formula_row(trial, cluster)
            if row is None or (number and 1 - row.room > _FAR_TOO_LARGE):
                break
            yield row


def search(cells: Sequence[Cell], make: Try, say: Say, width: int | None = None, most_rounds: int = MOST_ROUNDS) -> int:
    """Try variants in rounds, until none is expected to be faster than what was found; how many rounds it took.

    Without `width` each cell is searched for itself; with it, each round has at most so many trials, of the cells that
    are expected to be fastest, and ends where none promises more than the best of all.
    """
    for number in range(1, most_rounds + 1):
        picks = {id(row): (cell, row) for cell in cells if (row := cell.next()) is not None}
        chosen = _promising([row for _, row in picks.values()], cells, width)
        if not chosen:
            return number - 1
        say(f"round {number}: {len(chosen)} of {counted(sum(len(cell.by_formula) for cell in cells), 'variant')}")
        _note([(picks[id(pick)][0], pick) for pick in chosen], make(chosen))
    return most_rounds


def _note(picks: Sequence[tuple[Cell, TrialFigures]], made: Sequence[TrialFigures]) -> None:
    """Let each cell know what its pick came to."""
    rows = {row.spec.config_hash: row for row in made}
    for cell, pick in picks:
        cell.note(pick, rows.get(pick.spec.config_hash))


def _promising(picks: Sequence[TrialFigures], cells: Sequence[Cell], width: int | None) -> Sequence[TrialFigures]:
    if width is None:
        return picks
    best = fastest(cell.best for cell in cells)
    gains = [row for row in picks if best is None or (row.has_room and is_faster(row, best))]
    return sorted(gains, key=lambda row: (-min(row.room, ROOM), step_s(row)))[:width]


def step_s(row: TrialFigures | None) -> float:
    """Expected seconds of a step; infinite if not known."""
    return float("inf") if row is None or row.expected is None else row.expected.step_s


def fastest(rows: Iterable[TrialFigures | None]) -> TrialFigures | None:
    """The one of `rows` that is expected to be fastest of those that fit with room, the simplest within AS_FAST."""
    choice = choose(row for row in rows if row is not None)
    return None if choice is None else choice.best
