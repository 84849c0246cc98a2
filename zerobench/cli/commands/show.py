"""`zerobench show`: the tables of a run."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from zerobench.cli.options import REPORTS, Reports, RunName


def show(
    run: RunName = None,
    reports: Reports = REPORTS,
) -> None:
    """Show the tables of a run."""
    from zerobench.collection import no_collection

    with no_collection():
        from rich.console import Console

        from zerobench.report.terminal.show import show_run
        from zerobench.store import find_run

        show_run(find_run(run, reports), Console(highlight=False))
