"""What jobs of a cluster do not start: strategies whose ranks run in an environment of their own."""

from collections.abc import Iterable

from zerobench.errors import UserError
from zerobench.spec.strategy import STRATEGIES
from zerobench.spec.trial import TrialSpec


def refuse_own_environments(trials: Iterable[TrialSpec]) -> None:
    """Raises UserError where one of `trials` is not started by the suite's own Python."""
    refused = {
        trial.strategy for trial in trials if trial.strategy in STRATEGIES and STRATEGIES[trial.strategy].environment
    }
    if refused:
        raise UserError(
            f"strategy: {', '.join(sorted(refused))}: jobs cannot use its separate environment; exclude it "
            "here (--only) and use zerobench run"
        )
