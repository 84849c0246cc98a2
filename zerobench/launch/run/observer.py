"""What a runner tells whoever watches it: the screen, a test, nobody."""

from collections.abc import Sequence

from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import RunFolder
from zerobench.records.progress import Progress
from zerobench.records.records import TrialRecord


class Observer:
    """Watches nothing: whoever watches overrides what it wants to hear of.

    Called from the runner's thread, a few times a second at most; it must return at once.
    """

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """A run begins: `to_do` trials will be started, `kept` are there already, `skipped` cannot run."""

    def compiling(self, kernel: str, spent_s: float) -> None:
        """One of DeepSpeed's kernels is being compiled before the first trial, for `spent_s` seconds now."""

    def note(self, line: str) -> None:
        """Something happened that a person may want to know."""

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        """Trial `number` of `to_do` (from 1) begins."""

    def trial_progress(self, ranks: Sequence[Progress]) -> None:
        """The latest word of each rank of the trial in hand that has spoken."""

    def playing(self, trials: Sequence[tuple[TrialSpec, Progress | None]]) -> None:
        """The predicted trials in hand, several at a time, each with its latest word, if it has said one."""

    def trial_ended(self, record: TrialRecord) -> None:
        """The trial in hand ended and is on disk."""

    def run_ended(self) -> None:
        """No trial will be started any more."""
