"""A job's log: a line with the time for each trial that begins or ends."""

import sys
import time

from zerobench.common.units import counted, format_seconds
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.records.folder import RunFolder
from zerobench.records.records import TrialRecord


class Log(Observer):
    """Prints lines to standard output, which Slurm stores."""

    def __init__(self, job: str | None) -> None:
        self._before = f"job {job}: " if job else ""
        self._compiling: set[str] = set()

    def say(self, text: str) -> None:
        """Print a line and flush."""
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._before}{text}\n")
        sys.stdout.flush()

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """Report the number of trials to run."""
        done = f", {kept + skipped} already done" if kept + skipped else ""
        self.say(f"{run.run_id}: {counted(to_do, 'trial')} to run{done}")

    def note(self, line: str) -> None:
        """Report compiled kernels, before the first trial."""
        self.say(line)

    def compiling(self, kernel: str, spent_s: float) -> None:  # noqa: ARG002 -- a log says it once
        """Report each kernel being compiled once."""
        if kernel not in self._compiling:
            self._compiling.add(kernel)
            self.say(f"compiling DeepSpeed's kernel {kernel}")

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        self.say(f"trial {number} of {to_do}: {trial.trial_id}")

    def trial_ended(self, record: TrialRecord) -> None:
        """Report the trial's status and duration."""
        took = ""
        if record.started_at_s is not None and record.ended_at_s is not None:
            took = f" after {format_seconds(record.ended_at_s - record.started_at_s)}"
        why = f": {record.reason}" if record.reason else ""
        self.say(f"{record.trial_id}: {record.status.words}{took}{why}")
