"""Result of a plan or a search: the rows that are shown, the choice among them, and the changes that it took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerobench.records import store
from zerobench.records.trials import ended_trials, is_whole
from zerobench.report.explain.choice import Choice, decide
from zerobench.report.explain.decision import Decision, decision_of
from zerobench.report.figures.fit import ROOM
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words.labels import labels


@dataclass(frozen=True)
class Relief:
    """Changes that were tried where nothing fitted as requested."""

    tried: str
    """The kinds of changes, for people."""
    needed: str = ""
    """Those that the choice needs: `activation checkpointing and micro batch 1`; empty where nothing helped."""
    num_fitting: int = 0
    """Configurations that fit with those."""
    was_tight: bool = False
    """True if something fitted as requested, with less room than a recommendation needs."""

    @property
    def words(self) -> str:
        """`nothing fits as asked; with activation checkpointing, 3 fit`."""
        if not self.needed:
            return f"nothing fits with {ROOM:.0%} room, as asked or with {self.tried}"
        verb = "fits" if self.num_fitting == 1 else "fit"
        asked = "nothing fits with room as asked" if self.was_tight else "nothing fits as asked"
        return f"{asked}; with {self.needed}, {self.num_fitting} {verb}"


@dataclass(frozen=True)
class Decided:
    """The rows of a plan and the one choice among them, which every page of it shows."""

    rows: Sequence[TrialFigures]
    choice: Choice | None
    """None where nothing fits with room."""
    relief: Relief | None = None
    """None where something fits as asked."""
    searched: str = ""
    """Course of a search, for people; empty for a plan whose configurations were all predicted."""

    @property
    def best(self) -> TrialFigures | None:
        """The recommended row; None where nothing fits with room."""
        return None if self.choice is None else self.choice.best

    def measured(self, best: TrialFigures, place: str) -> "Decided":
        """The decision after the best few were measured on `place`, where `best` was the fastest."""
        if self.choice is None:
            return self
        same = best.spec.trial_id == self.choice.best.spec.trial_id
        rival = self.choice.runner_up if same else self.choice.best
        return replace(self, choice=replace(self.choice, best=best, runner_up=rival, measured_on=place))


def decided(rows: Sequence[TrialFigures], relief: Relief | None = None, searched: str = "") -> Decided:
    """Choose among `rows`, which are named."""
    return Decided(rows, decide(rows), relief, searched)


def decision(path: Path, made: Decided) -> Decision:
    """The decision as it is kept with the run at `path`."""
    trials = ended_trials(store.load_run(path))
    judged = [trial.spec.trial_id for trial in trials if is_whole(trial)]
    why = made.relief.words if made.relief else "" if made.choice else f"nothing fits with {ROOM:.0%} room"
    return decision_of(made.choice, why, judged)


def named_in_run(path: Path, rows: Sequence[TrialFigures]) -> list[TrialFigures]:
    """`rows` named as all tables of the run at `path` name them."""
    specs = [trial.spec for trial in ended_trials(store.load_run(path))]
    names: Mapping[str, str] = dict(zip((spec.trial_id for spec in specs), labels(specs), strict=True))
    return [replace(row, label=names[row.spec.trial_id]) for row in rows]
