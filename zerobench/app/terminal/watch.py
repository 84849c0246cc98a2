"""`zerobench watch`: the command with its output, a moving line below, then the run's tables.

On a terminal the command's output scrolls above that line; elsewhere it is passed on byte for byte and nothing is added
until the command has ended, except notes on removed compilation locks. zerobench's own messages go to standard error,
so a pipe gets the command's output alone. With `--json` the document has standard output to itself, and everything else
goes to standard error.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from zerobench.app.terminal.answer import print_document, shortest
from zerobench.app.terminal.live import REPAINT_S
from zerobench.app.terminal.live_trial import describe
from zerobench.common.errors import UserError
from zerobench.common.units import counted, format_bytes, format_spent
from zerobench.common.vocabulary import Status
from zerobench.launch.tracking.command import CommandProgress, Show
from zerobench.launch.tracking.watch import WatchedRun, watch

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SHORTEST_S = 0.001


def watch_command(
    command: Sequence[str], name: str | None, interval: str, reports: Path, *, as_json: bool, quiet: bool
) -> int:
    """Run and watch `command`; returns its exit status."""
    console = Console(stderr=True, highlight=False, quiet=quiet)
    is_live = console.is_terminal and sys.stdout.isatty() and not (as_json or quiet)

    def note(line: str) -> None:
        console.print(Text(f"zerobench: {line}"), soft_wrap=True)

    with (
        redirect_stdout(sys.stderr) if as_json else nullcontext(),
        LiveScreen(console) if is_live else PassThrough() as view,
    ):
        watched = watch(
            command,
            name=name,
            interval_s=seconds(interval),
            reports=reports,
            show=Show(out=view.out, err=view.err, progress=view.progress, note=note),
        )
    _show(watched, console)
    if as_json:
        record = watched.record
        status = None if record is None else record.status.value
        print_document("watch", {"run": str(watched.folder.path), "status": status, "exit_code": watched.exit_code})
    return watched.exit_code


def seconds(text: str) -> float:
    """Read `10ms`, `0.5s` or a plain number of seconds.

    Raises UserError for anything else, or less than a millisecond.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s)?", text.strip())
    value = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if value < _SHORTEST_S:
        raise UserError(f"--interval: {text!r}; choices: 1ms or more, such as 10ms or 0.5s")
    return value


class PassThrough:
    """Passes the command's output on untouched; for output that is not a terminal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def out(self, chunk: bytes) -> None:
        """Pass on standard output."""
        _write(sys.stdout.buffer, chunk)

    def err(self, chunk: bytes) -> None:
        """Pass on standard error."""
        _write(sys.stderr.buffer, chunk)

    def progress(self, watching: CommandProgress) -> None:
        pass


class LiveScreen(PassThrough):
    """Whole lines of the command above a moving line, for terminals."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._rest: dict[bool, bytes] = {}
        self._painted_s = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        for chunk in self._rest.values():
            self._print(chunk)
        self._live.stop()

    def out(self, chunk: bytes) -> None:
        """Print complete lines of standard output."""
        self._lines(chunk, is_error=False)

    def err(self, chunk: bytes) -> None:
        """Print complete lines of standard error."""
        self._lines(chunk, is_error=True)

    def progress(self, watching: CommandProgress) -> None:
        """Repaint, at most every REPAINT_S seconds."""
        now_s = time.monotonic()
        if now_s - self._painted_s >= REPAINT_S:
            self._painted_s = now_s
            self._live.update(Text(line(watching), overflow="ellipsis", no_wrap=True), refresh=True)

    def _lines(self, chunk: bytes, *, is_error: bool) -> None:
        whole, newline, rest = (self._rest.pop(is_error, b"") + chunk).rpartition(b"\n")
        if newline:
            self._print(whole)
        # A progress bar paints over itself with carriage returns: of it the last state is kept.
        self._rest[is_error] = rest.rpartition(b"\r")[2] if len(rest) > 4096 else rest

    def _print(self, chunk: bytes) -> None:
        if chunk:
            text = "\n".join(part.rpartition("\r")[2] or part for part in chunk.decode(errors="replace").split("\n"))
            self._console.print(Text.from_ansi(text), soft_wrap=True)


def line(watching: CommandProgress) -> str:
    """Progress of the command in one line."""
    speaking = [rank for rank in watching.ranks if rank.phase != "done"]
    tracked = f"tracked: {describe(speaking)}" if speaking else ("tracked steps done" if watching.ranks else "")
    ranks = counted(watching.num_ranks, "rank") if watching.num_ranks else ""
    host = f"host {format_bytes(watching.rss_bytes)}" if watching.rss_bytes else ""
    peaks = [
        device.peak_used_bytes
        for device in (watching.nvml.devices if watching.nvml else [])
        if device.peak_used_bytes is not None
    ]
    gpu_peak = f"GPU peak {format_bytes(max(peaks))}" if peaks else ""
    parts = [format_spent(watching.spent_s), ranks, host, gpu_peak, tracked]
    return " | ".join(part for part in parts if part)


def _write(stream: object, chunk: bytes) -> None:
    """Write and flush."""
    try:
        stream.write(chunk)  # type: ignore[attr-defined] # a binary stream, whatever stands in its place
        stream.flush()  # type: ignore[attr-defined] # as above
    except (BrokenPipeError, ValueError):
        return  # a reader that has gone is the command's concern, not ours


def _show(watched: WatchedRun, console: Console) -> None:
    """Print the tables and the run's folder on standard error."""
    from zerobench.records.store import load_run  # noqa: PLC0415 -- as above
    from zerobench.report.documents.show import show_run  # noqa: PLC0415 -- as above
    from zerobench.report.export.tidy_tables import write_tables  # noqa: PLC0415 -- pandas, which the command need not wait for

    if watched.record is None:
        console.print(Text(f"zerobench: the record could not be written: {watched.fault}"), soft_wrap=True)
        return
    path = watched.folder.path
    try:
        write_tables(load_run(path))
        if watched.record.status is not Status.INTERRUPTED:
            show_run(path, console)
    except (UserError, OSError) as error:  # the command's exit status is handed back whatever becomes of its tables
        console.print(Text(f"zerobench: {error}"), soft_wrap=True)
    console.print(Text(f"Run: {shortest(path)}"), soft_wrap=True)
