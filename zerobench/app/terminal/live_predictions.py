"""Progress of predictions and emulations on standard error."""

import threading
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.text import Text

from zerobench.app.terminal.live import LiveView, PlainView
from zerobench.app.terminal.live_trial import describe
from zerobench.common.units import format_spent
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import RunFolder
from zerobench.records.progress import Progress
from zerobench.records.records import TrialRecord

SAID_EVERY_S = 5.0
"""Seconds between two lines on a screen that cannot be redrawn."""
ANSWERS = {Status.COMPLETED, Status.SKIPPED, Status.OUT_OF_DEVICE_MEMORY}
"""Statuses that answer a prediction; not fitting is an answer."""


class _CountingView(PlainView):
    """Counts finished predictions; only failed ones get a line, since the tables show the others."""

    _done = _of = 0
    _in_hand: Sequence[tuple[TrialSpec, Progress | None]] = ()

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        self._done, self._of = 0, to_do
        super().run_started(run, to_do, kept, skipped)

    def trial_ended(self, record: TrialRecord) -> None:
        """Count the trial, and report it if it failed."""
        self._done += 1
        if record.status not in ANSWERS:
            super().trial_ended(record)

    @property
    def counted(self) -> str:
        """Progress line: `3 of 9 predicted | zero2: backward | zero3: init`."""
        words = (f"{self.called(trial.trial_id)}: {describe([word] if word else [])}" for trial, word in self._in_hand)
        return " | ".join([f"{self._done} of {self._of} predicted", *words])


class _PredictingMovingView(_CountingView, LiveView):
    """One line, redrawn in place."""

    draws_bars = False

    def trial_ended(self, record: TrialRecord) -> None:
        super().trial_ended(record)
        self._painted_s = 0.0
        self.trial_progress([])

    def playing(self, trials: Sequence[tuple[TrialSpec, Progress | None]]) -> None:
        self._in_hand = trials
        self.trial_progress([])

    def _screen(self, ranks: Sequence[Progress], spent_s: float) -> Text:  # noqa: ARG002 -- several trials at once
        return Text(self.counted, overflow="ellipsis", no_wrap=True)


class _PredictingStillView(_CountingView):
    """A line every few seconds, and one for each failed trial."""

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """Start the clock between lines."""
        self._said_s = time.monotonic()
        super().run_started(run, to_do, kept, skipped)

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        """Print nothing: a prediction ends within seconds."""

    def trial_ended(self, record: TrialRecord) -> None:
        super().trial_ended(record)
        self._in_hand = [pair for pair in self._in_hand if pair[0].trial_id != record.trial_id]
        self._report_progress()

    def playing(self, trials: Sequence[tuple[TrialSpec, Progress | None]]) -> None:
        """Report progress, at most every SAID_EVERY_S seconds."""
        self._in_hand = trials
        self._report_progress()

    def _report_progress(self) -> None:
        now = time.monotonic()
        if now - self._said_s >= SAID_EVERY_S and self._done < self._of:
            self._said_s = now
            self.say(self.counted)


def prediction_view() -> PlainView:
    """Return the view of a run of predictions on standard error."""
    console = Console(highlight=False, stderr=True)
    return _PredictingMovingView(console) if console.is_terminal else _PredictingStillView(console)


class Doing:
    """Progress of tasks done in sequence: one moving line on a terminal; elsewhere a line per task, repeated every few
    seconds.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._doing = self._where = ""
        self._began_s = 0.0
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ticking.join()
        if self._status is not None:
            self._status.stop()

    def say(self, doing: str, ranks: Sequence[Progress] = ()) -> None:
        """Set the current task and the progress of its ranks."""
        behind = [rank for rank in ranks if rank.phase != "done"]
        self._where = f": {describe(behind)}" if behind else ""
        if doing != self._doing:
            self._doing, self._began_s = doing, time.monotonic()
            self._show(doing)

    def _tick(self) -> None:
        while not self._over.wait(SAID_EVERY_S if self._status is None else 1.0):
            if self._doing:
                self._show(f"{self._doing}{self._where}, {format_spent(time.monotonic() - self._began_s)}")

    def _show(self, line: str) -> None:
        if self._status is not None:
            self._status.update(Text(line))
        else:
            self._console.print(Text(line), soft_wrap=True)
