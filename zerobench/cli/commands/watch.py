"""`zerobench watch`: run a command of the user's own and watch its memory."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.cli.options import REPORTS, Reports


def watch(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, as it would be alone.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The run's name; the script's.")] = None,
    interval: Annotated[str, typer.Option(metavar="TIME", help="Between two NVML samples; 83 bytes each.")] = "100ms",
    reports: Reports = REPORTS,
) -> int:
    """Run a command of your own and watch its GPUs and memory. It is not modified."""
    from zerobench.cli import watch

    return watch.watch_command(command, name, interval, reports)
