"""Progress of a running sweep: on a terminal the current trial above bars of finished ones, plain lines elsewhere.

Repaints at most twice a second, so that watching does not load the cores being measured.
"""

import statistics
import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from zerobench.app.terminal.live_trial import (
    COMPILING,
    MOST_RANKS,
    EndedTrial,
    bars,
    describe,
    ended_trial,
    groups_of,
    legend,
    memory,
    names_of,
    ranks_view,
    share_done,
    speed,
)
from zerobench.common.errors import UserError
from zerobench.common.units import counted, format_seconds, format_spent
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.records import store
from zerobench.records.folder import RunFolder
from zerobench.records.progress import Progress
from zerobench.records.records import TrialRecord
from zerobench.report.words.labels import labels
from zerobench.report.words.palette import CATEGORY_COLOURS

REPAINT_S = 0.5
SAID_EVERY_S = 30.0
"""Seconds between two lines about one trial on a screen that cannot be redrawn."""
_GOOD = {Status.COMPLETED: "green", Status.SKIPPED: "dim"}


class PlainView(Observer):
    """A line when a trial starts, one when it compiles, one when it ends."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._durations_s: list[float] = []
        self._said_compiling: set[str] = set()
        self._said_s = 0.0
        self._names_of: Mapping[str, str] = {}
        """Trial names of the run's tables by trial id."""

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        """Report the number of trials to run, kept and skipped."""
        self._names_of = names_of(run)
        parts = [
            f"{counted(to_do, 'trial')} to run",
            f"{kept} done before" if kept else "",
            f"{skipped} skipped" if skipped else "",
        ]
        self.say(f"{run.run_id}: {', '.join(part for part in parts if part)}")

    def compiling(self, kernel: str, spent_s: float) -> None:  # noqa: ARG002 -- the moving view shows it
        """Report each kernel being compiled once: nothing else moves for minutes."""
        if kernel not in self._said_compiling:
            self._said_compiling.add(kernel)
            self.say(compiling(kernel))

    def note(self, line: str) -> None:
        self.say(line)

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        """Name the trial and the time left, estimated from finished trials."""
        self._said_s = time.monotonic()
        left_s = self.time_left_s(to_do - number + 1)
        about = f" (about {format_spent(left_s)} left)" if left_s is not None else ""
        self.say(f"trial {number} of {to_do}: {self.called(trial.trial_id)}{about}")

    def trial_progress(self, ranks: Sequence[Progress]) -> None:
        """Report progress every half a minute, and once that ops are being compiled."""
        if any(rank.phase == "compile" for rank in ranks):
            if COMPILING not in self._said_compiling:
                self._said_compiling.add(COMPILING)
                self.say(COMPILING)
        elif time.monotonic() - self._said_s >= SAID_EVERY_S:
            self._said_s = time.monotonic()
            self.say(" | ".join(filter(None, [describe(ranks), memory(ranks), speed(ranks)])))

    def trial_ended(self, record: TrialRecord) -> None:
        """Report the trial's status and duration."""
        duration_s = _duration_s(record)
        if duration_s is not None:
            self._durations_s.append(duration_s)
        reason = f": {record.reason}" if record.reason else ""
        status = (f"{record.status:>9} ", _GOOD.get(record.status, "bold red"))
        self._print(Text.assemble(status, f"{self.called(record.trial_id)} in {format_seconds(duration_s)}{reason}"))

    def called(self, trial_id: str) -> str:
        """The trial's name in the run's tables."""
        return self._names_of.get(trial_id, trial_id)

    def say(self, text: str) -> None:
        self._print(Text(text))

    def _print(self, line: Text) -> None:
        """Print wrapped at words on a terminal, unwrapped elsewhere.

        Raises UserError if standard output cannot be written, which does not concern the run's folder. Raises
        BrokenPipeError.
        """
        # Only a terminal gets lines wrapped: in a log, a wrapped line cannot be searched.
        try:
            self.console.print(line, soft_wrap=not self.console.is_terminal)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"standard output (redirect it to where there is room): {error.strerror}; measurements are kept"
            ) from None

    def time_left_s(self, trials_left: int, spent_s: float = 0.0) -> float | None:
        """Estimate the seconds for `trials_left` trials, the first running for `spent_s`; None before any has ended."""
        if not self._durations_s:
            return None
        one_s = statistics.median(self._durations_s)
        return max(0.0, one_s - spent_s) + one_s * (trials_left - 1)


MOST_BARS = 12
"""Finished trials shown as bars at most."""
_OTHER_LINES = 12
"""Approximate screen lines taken by everything but the rows of ranks."""


class LiveView(PlainView):
    """The plain view's lines above a moving area: progress of sweep and trial, memory of each GPU by category, and bars
    of finished trials.
    """

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
        super().run_started(run, to_do, kept, skipped)
        if self.draws_bars and run.plan.exists():
            self._run = store.load_run(run.path)
        self._live.start()

    draws_bars = True
    """True if finished trials stay on the screen."""

    def trial_ended(self, record: TrialRecord) -> None:
        """Report the trial's status and draw its memory."""
        super().trial_ended(record)
        ended = ended_trial(self._run, record.trial_id) if self._run and record.status is not Status.SKIPPED else None
        if ended is not None:
            self._ended = [*self._ended, ended][-MOST_BARS:]
            self._names = labels([trial.spec for trial in self._ended])

    def compiling(self, kernel: str, spent_s: float) -> None:
        """Show the kernel being compiled and the time spent."""
        line = f"{compiling(kernel)} | {format_spent(spent_s)}"
        self._live.update(Text(line, overflow="fold"), refresh=True)

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        self._trial, self._number, self._to_do = trial, number, to_do
        self._began_s, self._painted_s = time.monotonic(), 0.0
        self.trial_progress([])

    def trial_progress(self, ranks: Sequence[Progress]) -> None:
        """Repaint, at most every REPAINT_S seconds."""
        now = time.monotonic()
        if now - self._painted_s >= REPAINT_S and self._trial is not None:
            self._painted_s = now
            self._live.update(self._screen(ranks, now - self._began_s), refresh=True)

    def run_ended(self) -> None:
        """Release the terminal."""
        self._live.stop()

    def _screen(self, ranks: Sequence[Progress], spent_s: float) -> RenderableType:
        console = self.console
        name = Text(self.called(self._trial.trial_id) if self._trial is not None else "", "bold", overflow="fold")
        parts: list[RenderableType] = [self._progress_bars(ranks, spent_s), name]
        if ranks:
            parts.append(ranks_view(ranks, max(1, min(MOST_RANKS, console.height - _OTHER_LINES))))
        groups = {**dict.fromkeys(group for trial in self._ended for group, _ in trial.groups), **groups_of(ranks)}
        if groups:
            parts.append(legend({group: groups[group] for group in CATEGORY_COLOURS if group in groups}))
        room = console.height - len(console.render_lines(Group(*parts))) - 2
        last = list(zip(self._ended, self._names, strict=True))[-room:] if room > 0 else []
        if last:
            parts += [
                Text("ended", "dim"),
                bars([trial for trial, _ in last], [name for _, name in last], console.width),
            ]
        return Group(*parts)

    def _progress_bars(self, ranks: Sequence[Progress], spent_s: float) -> RenderableType:
        """Progress bars of the sweep and of the trial."""
        left_s = self.time_left_s(self._to_do - self._number + 1, spent_s)
        left = f"about {format_spent(left_s)} left" if left_s is not None else ""
        share = share_done(ranks)
        progress = Bars(
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.fields[beside]}", markup=False, table_column=Column(overflow="fold")),
            expand=True,
        )
        beside = " | ".join(filter(None, [speed(ranks), format_spent(spent_s)]))
        sweep = progress.add_task(f"trial {self._number} of {self._to_do}", total=self._to_do, beside=left)
        trial = progress.add_task(describe(ranks), total=1, beside=beside)
        progress.update(sweep, completed=self._number - 1 + share)
        progress.update(trial, completed=share)
        return progress.get_renderable()


def compiling(kernel: str) -> str:
    """Message about a kernel compiled before the first trial."""
    return f"compiling {kernel}, a DeepSpeed C++ kernel: minutes, once per machine"


def _duration_s(record: TrialRecord) -> float | None:
    if record.started_at_s is None or record.ended_at_s is None:
        return None
    return record.ended_at_s - record.started_at_s


def screen() -> PlainView:
    """Return the view of a run on standard output: a moving screen on a terminal, plain lines elsewhere."""
    console = Console(highlight=False)
    moves = console.is_terminal and not console.is_dumb_terminal
    return LiveView(console) if moves else PlainView(console)
