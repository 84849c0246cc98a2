"""What the screen shows while a sweep runs: on a terminal the trial in hand below the bars of those that ended, plain
lines elsewhere.

It only repaints what the runner tells it, twice a second at most, so that watching does not load the cores that
are being measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from zerobench import store
from zerobench.cli.live_bars import EndedTrial, bars, ended_trial
from zerobench.errors import UserError
from zerobench.folder import RunFolder
from zerobench.progress import Progress
from zerobench.records import Status, TrialRecord
from zerobench.report.labels import labels
from zerobench.run.observer import Observer
from zerobench.spec.trial import TrialSpec
from zerobench.units import format_bytes, format_seconds

REPAINT_S = 0.5
SAID_EVERY_S = 5.0
"""Seconds between two lines where nothing can move."""
COMPILING = "DeepSpeed compiles its C++ ops: minutes, once per machine"
_GOOD = {Status.COMPLETED: "green", Status.SKIPPED: "dim"}


class PlainView(Observer):
    """A line when a trial begins, one when it compiles, one when it ends."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._durations_s: list[float] = []
        self._said_compiling: set[str] = set()

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """Say what will be done."""
        parts = [
            f"{to_do} trials to run",
            f"{kept} done before" if kept else "",
            f"{skipped} skipped" if skipped else "",
        ]
        self.say(f"{run.run_id}: {', '.join(part for part in parts if part)}")

    def compiling(self, kernel: str, spent_s: float) -> None:  # noqa: ARG002 -- the moving view shows it
        """Say once of each kernel that it is being compiled: nothing else moves for minutes."""
        if kernel not in self._said_compiling:
            self._said_compiling.add(kernel)
            self.say(compiling(kernel))

    def note(self, line: str) -> None:
        """Say it."""
        self.say(line)

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        """Name the trial, and the time left as far as trials that ended tell it."""
        left_s = self.time_left_s(to_do - number + 1)
        about = f" (about {format_seconds(left_s)} left)" if left_s is not None else ""
        self.say(f"trial {number} of {to_do}: {trial.trial_id}{about}")

    def trial_progress(self, ranks: Sequence[Progress]) -> None:
        """Say once that ops are being compiled: nothing else moves for minutes."""
        if any(rank.phase == "compile" for rank in ranks) and COMPILING not in self._said_compiling:
            self._said_compiling.add(COMPILING)
            self.say(COMPILING)

    def trial_ended(self, record: TrialRecord) -> None:
        """Say how it ended."""
        duration_s = _duration_s(record)
        if duration_s is not None:
            self._durations_s.append(duration_s)
        reason = f": {record.reason}" if record.reason else ""
        status = (f"{record.status:>9} ", _GOOD.get(record.status, "bold red"))
        self._print(Text.assemble(status, f"{record.trial_id} in {format_seconds(duration_s)}{reason}"))

    def say(self, text: str) -> None:
        """Print one line, as it is."""
        self._print(Text(text))

    def _print(self, line: Text) -> None:
        """Raises UserError: it cannot be printed, which says nothing of the run's folder. Raises BrokenPipeError."""
        try:
            self.console.print(line, soft_wrap=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(f"standard output: {error.strerror}; measurements are kept") from None

    def time_left_s(self, trials_left: int, spent_s: float = 0.0) -> float | None:
        """Seconds for `trials_left` trials, of which the first has run `spent_s`; None before any has ended."""
        if not self._durations_s:
            return None
        one_s = statistics.median(self._durations_s)
        return max(0.0, one_s - spent_s) + one_s * (trials_left - 1)


MOST_BARS = 12
"""Trials that ended of which the screen still shows the bars."""


class LiveView(PlainView):
    """The plain view's lines; below them, moving, memory by category of the trials that ended and the trial in hand."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._trial: TrialSpec | None = None
        self._number = self._to_do = 0
        self._began_s = self._painted_s = 0.0
        self._run: store.Run | None = None
        self._ended: list[EndedTrial] = []
        self._names: list[str] = []

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """Begin to move."""
        super().run_started(run, to_do, kept, skipped)
        if self.draws_bars and run.plan.exists():
            self._run = store.load_run(run.path)
        self._live.start()

    draws_bars = True
    """Whether the trials that ended stay on the screen."""

    def trial_ended(self, record: TrialRecord) -> None:
        """Say how it ended, and draw its memory."""
        super().trial_ended(record)
        ended = ended_trial(self._run, record.trial_id) if self._run and record.status is not Status.SKIPPED else None
        if ended is not None:
            self._ended = [*self._ended, ended][-MOST_BARS:]

    def compiling(self, kernel: str, spent_s: float) -> None:
        """Show for how long."""
        line = f"{compiling(kernel)} | {format_seconds(float(round(spent_s)))}"
        self._live.update(Text(line, overflow="ellipsis", no_wrap=True), refresh=True)

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        """Show the trial."""
        self._trial, self._number, self._to_do = trial, number, to_do
        self._names = labels([*(earlier.spec for earlier in self._ended), trial]) if self._ended else []
        self._began_s, self._painted_s = time.monotonic(), 0.0
        self.trial_progress([])

    def trial_progress(self, ranks: Sequence[Progress]) -> None:
        """Repaint, unless that was just done."""
        now = time.monotonic()
        if now - self._painted_s >= REPAINT_S and self._trial is not None:
            self._painted_s = now
            self._live.update(self._screen(ranks, now - self._began_s), refresh=True)

    def run_ended(self) -> None:
        """Give the terminal back."""
        self._live.stop()

    def _screen(self, ranks: Sequence[Progress], spent_s: float) -> RenderableType:
        line = self._line(ranks, spent_s)
        if not self._names:
            return line
        now = (_largest_bytes(ranks) or 0, describe(ranks))
        return Group(line, bars(self._ended, self._names, now, self.console.width))

    def _line(self, ranks: Sequence[Progress], spent_s: float) -> Text:
        left_s = self.time_left_s(self._to_do - self._number + 1, spent_s)
        parts = [
            f"trial {self._number} of {self._to_do}",
            describe(ranks),
            memory(ranks),
            format_seconds(float(round(spent_s))),
            f"about {format_seconds(float(round(left_s)))} left" if left_s is not None else "",
        ]
        name = self._trial.trial_id if self._trial is not None else ""
        return Text(f"{' | '.join(part for part in parts if part)}\n{name}", overflow="ellipsis", no_wrap=True)


ANSWERS = {Status.COMPLETED, Status.SKIPPED, Status.OUT_OF_DEVICE_MEMORY}
"""What a prediction may come to: that it does not fit is an answer too."""


class _CountingView(PlainView):
    """Counts the predictions that ended; those that answered are in the tables below and need no line of their own."""

    _done = _of = 0
    _in_hand: Sequence[tuple[TrialSpec, Progress | None]] = ()
    _names_of: Mapping[str, str] = MappingProxyType({})
    """Of the run's trials, as its tables have them, by their ids."""

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """Begin to count."""
        self._done, self._of = 0, to_do
        self._names_of = _names(store.load_run(run.path)) if run.plan.exists() else {}
        super().run_started(run, to_do, kept, skipped)

    def trial_ended(self, record: TrialRecord) -> None:
        """Count it, and name it where it failed."""
        self._done += 1
        if record.status not in ANSWERS:
            super().trial_ended(record)

    @property
    def counted(self) -> str:
        """`3 of 9 predicted | zero2: backward | zero3: init`."""
        words = (
            f"{self._names_of.get(trial.trial_id, trial.trial_id)}: {describe([word] if word else [])}"
            for trial, word in self._in_hand
        )
        return " | ".join([f"{self._done} of {self._of} predicted", *words])


class _PredictingMovingView(_CountingView, LiveView):
    """One line that moves."""

    draws_bars = False

    def trial_ended(self, record: TrialRecord) -> None:
        super().trial_ended(record)
        self._painted_s = 0.0
        self.trial_progress([])

    def playing(self, trials: Sequence[tuple[TrialSpec, Progress | None]]) -> None:
        """Repaint."""
        self._in_hand = trials
        self.trial_progress([])

    def _line(self, ranks: Sequence[Progress], spent_s: float) -> Text:  # noqa: ARG002 -- several trials at once
        return Text(self.counted, overflow="ellipsis", no_wrap=True)


class _PredictingStillView(_CountingView):
    """A line every few seconds, and one for each trial that failed."""

    _said_s = 0.0

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """Begin to count, from now on."""
        self._said_s = time.monotonic()
        super().run_started(run, to_do, kept, skipped)

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        """Nothing: it ends within seconds."""

    def trial_ended(self, record: TrialRecord) -> None:
        super().trial_ended(record)
        self._in_hand = [pair for pair in self._in_hand if pair[0].trial_id != record.trial_id]
        self._say_how_far()

    def playing(self, trials: Sequence[tuple[TrialSpec, Progress | None]]) -> None:
        """Say it, unless that was just done."""
        self._in_hand = trials
        self._say_how_far()

    def _say_how_far(self) -> None:
        now = time.monotonic()
        if now - self._said_s >= SAID_EVERY_S and self._done < self._of:
            self._said_s = now
            self.say(self.counted)


def _names(run: store.Run) -> dict[str, str]:
    """The names of the trials that no rule skips."""
    ids = [entry.trial_id for entry in run.plan.trials if entry.reason is None]
    return dict(zip(ids, labels([run.spec(trial_id) for trial_id in ids]), strict=True))


def prediction_view() -> PlainView:
    """What shows a run of predictions on standard error."""
    console = Console(highlight=False, stderr=True)
    return _PredictingMovingView(console) if console.is_terminal else _PredictingStillView(console)


def compiling(kernel: str) -> str:
    """That a kernel is being compiled before the first trial."""
    return f"compiling {kernel}, a DeepSpeed C++ kernel: minutes, once per machine"


def describe(ranks: Sequence[Progress]) -> str:
    """Where the trial is: where its rank that is furthest behind is."""
    if not ranks:
        return "starting"
    if any(rank.phase == "compile" for rank in ranks):
        return COMPILING
    behind = min(ranks, key=lambda rank: (rank.step_index, rank.updated_at_s))
    if 0 <= behind.step_index < behind.num_steps:
        return f"{behind.phase}, step {behind.step_index + 1} of {behind.num_steps}"
    return behind.phase


def memory(ranks: Sequence[Progress]) -> str:
    """The memory of the rank that holds most; empty where none has said."""
    largest = _largest_bytes(ranks)
    return "" if largest is None else f"{format_bytes(largest)} on the largest rank"


def _largest_bytes(ranks: Sequence[Progress]) -> int | None:
    return max((rank.memory_bytes for rank in ranks if rank.memory_bytes is not None), default=None)


def _duration_s(record: TrialRecord) -> float | None:
    if record.started_at_s is None or record.ended_at_s is None:
        return None
    return record.ended_at_s - record.started_at_s
