"""Finds the largest that fits with whole trials: the one driver of predicted and of measured frontiers.

The next tries of all cells are made together, round by round, each round one ordinary run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zerobench.common.units import format_bytes
from zerobench.config.derived.frontier import Frontier, Search, Try, search, search_together, slope
from zerobench.config.derived.frontier_axes import FrontierAxis
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.runner import RunResult
from zerobench.records.store import load_run
from zerobench.records.trials import Trial, completed, ended_trials, is_whole
from zerobench.report.figures.run.run_frontier import ran_out

WITHIN = 0.01
"""Relative precision of a frontier: an allocator's rounding is as large."""

Make = Callable[[Sequence[PlannedTrial], str], RunResult]
"""Runs the tries of a round, whose name it is told."""


@dataclass(frozen=True)
class Question:
    """Cells whose largest `axis` that fits is searched."""

    axis: FrontierAxis
    words: str
    """Unit of the axis, for people."""
    cells: Mapping[str, TrialSpec]
    """Trials by a name that the answer has too."""
    capacity_bytes: int
    needed_bytes: Callable[[Trial], int | None]
    """Need of a whole trial, to compare with the capacity; None if not known."""
    planned: Callable[[str, TrialSpec], PlannedTrial] = lambda _, trial: PlannedTrial(trial=trial)
    """A cell's try, with the rule that it breaks where it is made."""

    def search(self, name: str, near: Frontier | None = None) -> Search:
        """A search for a cell: from its own value, or near what an earlier search found."""
        trial = self.cells[name]
        most = self.axis.last(trial)
        if near is None:
            return search(self.capacity_bytes, start=self.axis.start(trial), most=most, within=WITHIN)
        start = 1 if near.largest is None else near.largest.value
        steepness = slope(near.tries, self.capacity_bytes)
        return search(self.capacity_bytes, start=start, most=most, within=WITHIN, bytes_per_step=steepness)


@dataclass(frozen=True)
class Answer:
    """Results of the searches."""

    frontiers: dict[str, Frontier] = field(default_factory=dict)
    """Results by cell, without those that were given up."""
    trials: dict[tuple[str, int], Trial] = field(default_factory=dict)
    """All that were tried, by cell and step."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Cells whose search got no answer, with the reason."""

    def trial(self, name: str, at: Try | None) -> Trial | None:
        """The trial of a cell at a value; None without one."""
        return None if at is None else self.trials[name, at.value]


def answer(
    question: Question,
    make: Make,
    near: Mapping[str, Frontier] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Search for all cells, from what `near` has of them where it does, and `say` what each try comes to.

    Raises KeyboardInterrupt: someone stopped a run.
    """
    answered = Answer()
    rounds = _Rounds(question, make, answered, say)
    searches = {name: question.search(name, (near or {}).get(name)) for name in question.cells}
    answered.frontiers.update(search_together(searches, rounds.peaks))
    return answered


class _Rounds:
    """Makes the tries of a round in one run, and keeps what became of each."""

    def __init__(self, question: Question, make: Make, answered: Answer, say: Callable[[str], None]) -> None:
        self._question, self._make, self._found, self._say = question, make, answered, say
        self._number = 0

    def peaks(self, asked: Mapping[str, int]) -> dict[str, int | None]:
        """Needs of the cells at the requested steps, None where memory ended the trial; failed ones are left out."""
        self._number += 1
        question = self._question
        tries = {name: question.axis.trial_at(question.cells[name], step) for name, step in asked.items()}
        result = self._make([question.planned(name, trial) for name, trial in tries.items()], f"round-{self._number}")
        there = {trial.trial_id: trial for trial in ended_trials(load_run(result.whole().path))}
        peaks: dict[str, int | None] = {}
        for name, spec in tries.items():
            trial = there.get(spec.trial_id)
            needed_bytes = self._needed(trial)
            if trial is not None and (needed_bytes is not None or ran_out(trial)):
                peaks[name] = needed_bytes
                self._found.trials[name, asked[name]] = trial
                self._say(f"  {name}: {self._verdict(asked[name], needed_bytes, trial)}")
            else:
                self._found.given_up[name] = f"{_failure_reason(trial)}; see {result.folder.trial(spec.trial_id).path}"
        return peaks

    def _needed(self, trial: Trial | None) -> int | None:
        """Need of a try; None if not known, or if memory ended it although the known part would have fitted.

        A try that an emulated GPU refused is played again with room (rank/loop/forked_trial.py), so that it too says
        how steep memory is.
        """
        needed_bytes = None if trial is None or not is_whole(trial) else self._question.needed_bytes(trial)
        if trial is None or needed_bytes is None or completed(trial):
            return needed_bytes
        return needed_bytes if needed_bytes > self._question.capacity_bytes else None

    def _verdict(self, step: int, needed_bytes: int | None, trial: Trial) -> str:
        what = f"{step * self._question.axis.unit:,} {self._question.words}"
        if needed_bytes is None or not completed(trial):
            return f"{what} do not fit: {trial.record.reason or trial.record.status}"
        capacity_bytes = self._question.capacity_bytes
        fit = "fit" if needed_bytes <= capacity_bytes else "do not fit"
        return f"{what} {fit}: {format_bytes(needed_bytes)} of {format_bytes(capacity_bytes)}"


def _failure_reason(trial: Trial | None) -> str:
    """Reason why a try is no answer."""
    if trial is None:
        return "not ended"
    return trial.record.reason or f"{trial.record.status}, memory not sampled"
