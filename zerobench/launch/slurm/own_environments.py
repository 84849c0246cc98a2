"""Refuse strategies whose ranks run in a separate environment, which jobs do not start."""

from collections.abc import Iterable

from zerobench.common.errors import UserError
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import TrialSpec


def refuse_own_environments(trials: Iterable[TrialSpec]) -> None:
    """Raise UserError if one of `trials` does not run under zerobench's own Python."""
    named = {trial.strategy for trial in trials}
    refused = {name for name in named if name in STRATEGIES and STRATEGIES[name].environment}
    if refused:
        raise UserError(
            f"strategy: {', '.join(sorted(refused))}: jobs cannot use its separate environment; exclude it "
            "here (--only) and use zerobench run"
        )
