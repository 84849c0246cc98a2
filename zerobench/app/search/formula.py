"""Trials by closed forms, in this process and in milliseconds: a search asks for thousands."""

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.derived.cluster import Cluster
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory.record import formula_record
from zerobench.launch.run.trial_record import trial_record
from zerobench.records.trials import PlainTrial
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.trial import TrialFigures


def formula_trial(trial: TrialSpec, *, plays_allocator: bool = False) -> PlainTrial:
    """`trial` and what its ranks hold by formula. Raises UserError: no closed form is known of such work."""
    asked = trial.model_copy(update={"evidence": Evidence.FORMULA})
    rank = formula_record(asked, plays_allocator=plays_allocator)
    return PlainTrial(asked, trial_record(asked, "formula", (Status.COMPLETED, None), 1), (rank,))


def formula_row(trial: TrialSpec, cluster: Cluster, *, plays_allocator: bool = False) -> TrialFigures | None:
    """`trial` on the cluster by formula; None where no closed form is known of such work.

    Playing the allocator, as the formula world does, takes up to 0.15 s more.
    """
    try:
        asked = formula_trial(trial, plays_allocator=plays_allocator)
    except UserError:
        return None
    return trial_figures(asked, trial.strategy, cluster)
