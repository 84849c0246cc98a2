"""The figures of all trials of one run or several, from one pass over the records.

Trials pass through one at a time and leave a few numbers, so that a hundred thousand of them cost what those cost and
not what their records cost. Samples of NVML are not among them: whoever draws a trial's curve reads that trial's file.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from string import ascii_uppercase

from zerobench.common.grouped import grouped
from zerobench.common.vocabulary import Category, Place
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.records import store
from zerobench.records.records import Recovery
from zerobench.records.trials import (
    PlainTrial,
    Trial,
    can_be_compared,
    ended_trials,
    losses_alone,
    refuse_impossible_values,
)
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.parity import Parity, ParityJudge
from zerobench.report.figures.predictions.predicted import Cell, Pair, join
from zerobench.report.figures.recovery import distance, uninterrupted_losses
from zerobench.report.figures.strategies.rows import ComparedSide, compare
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words.labels import labels


@dataclass(frozen=True, slots=True)
class Errors:
    """A prediction beside what measured the same work in the same run."""

    trial: TrialFigures
    """The prediction."""
    against: Evidence
    cells: Sequence[Cell]
    """Each figure that both sides have."""

    def peaks(self, *places: Place) -> list[Cell]:
        """The peaks of whole places, by phase."""
        totals = (cell for cell in self.cells if cell.category is Category.TOTAL and cell.quantity == "peak")
        return [cell for cell in totals if cell.place in places]


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """All that documents show of some runs; (run_id, trial_id) is the key everywhere."""

    runs: Sequence[store.Run]
    figures: Sequence[TrialFigures]
    """Each trial that ended, in the runs' order."""
    comparison: Sequence[ComparedSide]
    """Measured trials beside the single process that trains the same global batch."""
    predicted: Sequence[Errors]
    letters: Mapping[str, str]
    """Letters of the runs in names, by run_id: A, B, ...; empty where no trial is in two of the runs."""

    @property
    def letters_sentence(self) -> str:
        """`Runs: A is before_20260101-120000, B is after_20260102-120000`; empty where names have no letters."""
        named = ", ".join(f"{letter} is {run_id}" for run_id, letter in self.letters.items())
        return f"Runs: {named}" if named else ""

    @property
    def sweep_names(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(str(run.sweep.get("name") or run.run_id) for run in self.runs))

    def run(self, run_id: str) -> store.Run:
        """The run called `run_id`."""
        return next(run for run in self.runs if run.run_id == run_id)


def run_figures(runs: Sequence[store.Run]) -> RunFigures:
    """The figures of `runs`.

    Raises:
        UserError: a record is torn, corrupt, newer than this version, or holds an impossible value.

    """
    of_runs = [_OfRun(run) for run in runs]
    unnamed = [trial for of_run in of_runs for trial in of_run.trials]
    keys = [(trial.spec.trial_id, trial.spec.config_hash) for trial in unnamed]  # runs of one script share its name
    letters = _letters([run.run_id for run in runs]) if len(set(keys)) < len(keys) else {}
    names = _labels([trial.spec for trial in unnamed], keys, [letters.get(trial.run_id) for trial in unnamed])
    beside = [known for of_run in of_runs for known in zip(of_run.parities, of_run.distances, strict=True)]
    trials = [trial.named(label, *known) for trial, label, known in zip(unnamed, names, beside, strict=True)]
    by_key = {(trial.run_id, trial.trial_id): trial for trial in trials}
    return RunFigures(
        runs=runs,
        figures=trials,
        comparison=compare(trials),
        predicted=[
            Errors(by_key[of_run.run_id, pair.predicted.record.trial_id], pair.against, pair.cells)
            for of_run in of_runs
            for pair in of_run.pairs()
        ],
        letters=letters,
    )


class _OfRun:
    """One run's trials, and what they are beside each other."""

    def __init__(self, run: store.Run) -> None:
        self.run_id = run.run_id
        self.trials: list[TrialFigures] = []
        losses: list[PlainTrial] = []
        recoveries: list[Recovery | None] = []
        for trial in run.trials():
            with refuse_impossible_values(trial.folder.path):
                self.trials.append(replace(trial_figures(trial), trial=store.Trial(run, trial.record.trial_id)))
            losses.append(losses_alone(trial))
            recoveries.append(trial.record.recovery)
        self._judge = ParityJudge(losses)
        self._run = run
        self._can_be_compared = can_be_compared(losses)
        with refuse_impossible_values(run.folder.path):
            self.parities: list[Parity | None] = [self._judge.judge(loss) for loss in losses]
            self.distances = [
                None if recovery is None else distance(recovery, uninterrupted_losses(trial, losses))
                for trial, recovery in zip(losses, recoveries, strict=True)
            ]

    def pairs(self) -> Iterator[Pair]:
        """Predictions beside what measured the same work."""
        if self._can_be_compared:
            with refuse_impossible_values(self._run.folder.path):
                yield from prediction_pairs(ended_trials(self._run), self._judge)


def prediction_pairs(trials: Iterable[Trial], judge: ParityJudge) -> Iterator[Pair]:
    """Predictions beside what measured the same work; of lazy trials, those of one piece of work are held at a time."""
    by_work = grouped(trials, lambda trial: trial.spec.config_hash)
    for work in list(by_work):
        yield from join(by_work.pop(work), judge)


def _letters(run_ids: Sequence[str]) -> Mapping[str, str]:
    """A to Z for the first runs, numbers for any after them."""
    numbers = map(str, count(len(ascii_uppercase) + 1))
    return dict(zip(run_ids, chain(ascii_uppercase, numbers), strict=False))


def _labels(specs: Sequence[TrialSpec], keys: Sequence[tuple[str, str]], letters: Sequence[str | None]) -> list[str]:
    """Short names; where several runs hold the same trial, with the run's letter behind it."""
    by_key = dict(zip(keys, specs, strict=True))
    names = dict(zip(by_key, labels(list(by_key.values())), strict=True))
    counts = Counter(keys)
    return [
        f"{names[key]} @ {letter}" if counts[key] > 1 else names[key] for key, letter in zip(keys, letters, strict=True)
    ]
