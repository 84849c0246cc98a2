"""Why not the others: the reasons of `zerobench plan`, on the page of a run that predicted."""

from collections.abc import Sequence

from zerobench.records import store
from zerobench.report.documents.view import losers
from zerobench.report.explain.choice import decide
from zerobench.report.explain.decision import stored
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.grid import MANY_ROWS
from zerobench.report.tables.part import Part


def reasons(runs: Sequence[store.Run], trials: Sequence[TrialFigures]) -> Part | None:
    """What speaks against each trial but the recommended one; None where not all of one run's trials predict one
    model on GPUs of one kind, or there are too many to read.
    """
    predicted = [trial for trial in trials if not trial.is_measured]
    works = {(trial.spec.model.name, trial.gpu, trial.spec.world_size) for trial in trials}
    if len(runs) > 1 or len(works) > 1 or len(predicted) < len(trials) or not 1 < len(trials) <= MANY_ROWS:
        return None
    rows = [trial for trial in trials if trial.is_whole and trial.gpu is not None]
    if not rows:
        return None
    kept = stored(runs[0], [row.trial_id for row in rows])
    if kept is not None:
        best = next((row for row in rows if row.trial_id == kept.trial_id), None)
    else:
        choice = decide(rows)
        best = None if choice is None else choice.best
    return next(losers(rows, best), None)
