"""`zerobench run`: run a sweep."""

from pathlib import Path
from typing import Annotated

import typer

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Only, Repeats, Reports, Sets, SweepName


@answering
def run(
    sweep: SweepName = None,
    sets: Sets = None,
    only: Only = None,
    repeats: Repeats = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trials without running them.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Run missing and failed trials of an earlier run.")
    ] = None,
    reports: Reports = REPORTS,
    hostfile: Annotated[
        Path | None, typer.Option("--hostfile", metavar="FILE", help="Nodes, one `name slots=N` per line.")
    ] = None,
    frontier: Annotated[
        str | None,
        typer.Option(metavar="AXIS", help="Measure the largest that fits: model, micro-batch or sequence-length."),
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory limit per rank (the GPU's memory).")
    ] = None,
) -> Answer:
    """Run a sweep and show its tables."""
    from zerobench.cli import run

    request = run.RunRequest(
        sweep=sweep,
        sets=sets or [],
        only=only or [],
        repeats=repeats,
        resume=resume,
        reports=reports,
        hostfile=hostfile,
        frontier=frontier,
        capacity=capacity,
    )
    if frontier is not None or capacity is not None:
        from zerobench.cli import run_frontier

        return run_frontier.run_frontier(request, dry_run=dry_run)
    return run.list_trials(request) if dry_run else run.run(request)
