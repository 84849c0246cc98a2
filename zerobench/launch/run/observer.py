"""Events of a runner for its observers: the screen, a job's log, tests."""

from collections.abc import Sequence

from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import RunFolder
from zerobench.records.progress import Progress
from zerobench.records.records import TrialRecord


class Observer:
    """Ignores every event; subclasses override those they show.

    Called from the runner's thread, a few times a second at most; must return at once.
    """

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """A run begins: `to_do` trials will start, `kept` are there already, `skipped` cannot run."""

    def compiling(self, kernel: str, spent_s: float) -> None:
        """A DeepSpeed kernel has been compiling for `spent_s` seconds, before the first trial."""

    def note(self, line: str) -> None:
        """A line for people."""

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        """Trial `number` of `to_do` (from 1) begins."""

    def trial_progress(self, ranks: Sequence[Progress]) -> None:
        """The latest progress of each rank of the current trial that has reported."""

    def playing(self, trials: Sequence[tuple[TrialSpec, Progress | None]]) -> None:
        """The current predicted trials, several at a time, each with its latest progress."""

    def trial_ended(self, record: TrialRecord) -> None:
        """The current trial ended and its record is on disk."""

    def run_ended(self) -> None:
        """No further trial will start."""
