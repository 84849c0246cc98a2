"""`zerobench validate`: how far predictions are off."""

from pathlib import Path
from typing import Annotated

import typer

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Only, Reports, Sets, SweepName


@answering
def validate(
    sweep: SweepName = None,
    sets: Sets = None,
    only: Only = None,
    worlds: Annotated[
        str | None,
        typer.Option(
            "--worlds", metavar="WORLD,...", help="Predictions: solo, simulated, formula, emulated (all but emulated)."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Read an earlier run instead of running.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show the errors of each phase, and every mistake by name.")
    ] = False,
    reports: Reports = REPORTS,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the tables as Markdown too.")
    ] = None,
) -> Answer:
    """Show prediction errors of a sweep, run measured and predicted."""
    from zerobench.cli import validate

    return validate.validate(
        validate.ValidateRequest(
            sweep=sweep,
            sets=sets or [],
            only=only or [],
            worlds=worlds,
            run=run,
            reports=reports,
            markdown=markdown,
            details=details,
        )
    )
