"""`zerobench watch`: run the user's own command and record its memory."""

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.app.terminal.answer import AsJson
from zerobench.app.terminal.options import REPORTS, PythonPath, Reports


def watch(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Command to run, unchanged.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Run name (the script's).")] = None,
    interval: Annotated[str, typer.Option(metavar="TIME", help="NVML sampling interval.")] = "100ms",
    python: PythonPath = None,  # noqa: ARG001 -- its callback does the work
    reports: Reports = REPORTS,
    as_json: AsJson = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No tables: the command's own output (and --json's document).")
    ] = False,
) -> int:
    """Run your own command and record its GPU and host memory. The command is not modified."""
    from zerobench.app.terminal import watch

    return watch.watch_command(command, name, interval, reports, as_json=as_json, quiet=quiet)
