"""`zerobench status`: progress of a run."""

from typing import Annotated

import typer

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import REPORTS, Reports, RunName


@answering
def status(
    run: RunName = None,
    reports: Reports = REPORTS,
    follow: Annotated[
        float | None,
        typer.Option("--follow", metavar="SECONDS", min=1.0, help="Refresh at this interval until all is done."),
    ] = None,
) -> Answer:
    """Show the status of a run, on a cluster or here. Exit code: 0 done, 1 with failures, 3 still running."""
    from zerobench.app.terminal.status import follow_run, show_status

    return show_status(run, reports) if follow is None else follow_run(run, reports, follow)
