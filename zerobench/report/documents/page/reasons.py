"""Why not the others: the reasons of `zerobench plan`, on the page of a run that predicted."""

from collections.abc import Sequence

from zerobench.estimate.time.predicted_speed import gpu_of, usual_cluster
from zerobench.records import store
from zerobench.records.trials import ended_trials, is_whole
from zerobench.report.documents.view import losers, plan_row
from zerobench.report.explain.decision import stored
from zerobench.report.explain.rows import recommended
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.grid import MANY_ROWS
from zerobench.report.tables.part import Part


def reasons(runs: Sequence[store.Run], trials: Sequence[TrialFigures]) -> Part | None:
    """What speaks against each trial but the recommended one; None where not all of one run's trials predict one
    model on GPUs of one kind, or there are too many to read.
    """
    predicted = [trial for trial in trials if not trial.summary.is_measured]
    works = {(trial.spec.model.name, trial.summary.gpu, trial.spec.world_size) for trial in trials}
    if len(runs) > 1 or len(works) > 1 or len(predicted) < len(trials) or not 1 < len(trials) <= MANY_ROWS:
        return None
    labels = {trial.spec.trial_id: trial.label for trial in trials}
    whole = [trial for trial in ended_trials(runs[0]) if is_whole(trial) and trial.spec.trial_id in labels]
    gpu = gpu_of(whole[0]) if whole else None
    if gpu is None:
        return None
    rows = [plan_row(trial, labels[trial.spec.trial_id], usual_cluster(trial.spec, gpu)) for trial in whole]
    kept = stored(runs[0], [row.trial.spec.trial_id for row in rows])
    if kept is not None:
        best = next((row for row in rows if row.trial.spec.trial_id == kept.trial_id), None)
    else:
        choice = recommended(rows)
        best = None if choice is None else choice.best
    return next(losers(rows, best), None)
