"""Closed forms of a recorded trial: they rank the settings that would make its peak smaller. Nothing is run."""

from collections.abc import Sequence

from zerobench.app.search.formula import formula_trial
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Place, StepKind
from zerobench.config.derived.known_work import knows_work
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.instants import Instant, largest_peak
from zerobench.records.trials import Trial
from zerobench.report.explain.remedies import Remedy
from zerobench.report.explain.savings import FAR, TELLING, Estimate, Saving


class ClosedForms:
    """Closed forms as `zerobench explain` asks them (zerobench.report.explain.savings.Estimates)."""

    def peak(self, trial: Trial, seen: Instant, offered: Sequence[Remedy]) -> Estimate | None:
        """Evaluate the trial as it is and with each change: savings are differences of the two, where they are larger
        than the error.
        """
        now = _peak_bytes(trial.spec, seen.rank)
        if now is None or not seen.total_bytes:
            return None
        error = now / seen.total_bytes - 1
        if abs(error) > FAR:
            return Estimate(now, error, ())
        least = max(abs(now - seen.total_bytes), TELLING * seen.total_bytes)
        peaks = {change.setting: _peak_bytes(change.applied(trial.spec), seen.rank) for change in offered}
        smaller = {setting: nbytes for setting, nbytes in peaks.items() if nbytes is not None and now - nbytes > least}
        return Estimate(now, error, [Saving(setting, nbytes - now) for setting, nbytes in smaller.items()])

    def needed_bytes(self, trial: Trial) -> int | None:
        """The larger peak of start-up and steady steps on rank 0."""
        peaks = [_peak_bytes(trial.spec, step=step) for step in StepKind]
        return max((peak for peak in peaks if peak is not None), default=None)


def _peak_bytes(spec: TrialSpec, rank: int = 0, step: StepKind = StepKind.STEADY) -> int | None:
    if not knows_work(spec):
        return None
    prediction = spec.prediction.model_copy(update={"rank": rank})
    try:
        made = formula_trial(spec.model_copy(update={"prediction": prediction}))
    except UserError:
        return None
    peak = largest_peak(made, step, Place.DEVICE)
    return None if peak is None else peak.total_bytes
