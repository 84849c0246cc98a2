"""`zerobench compare`: the same trials in two runs, and a gate for CI."""

from pathlib import Path
from typing import Annotated

import typer

from zerobench.cli import completion
from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Reports


@answering
def compare(
    base: Annotated[
        str | None,
        typer.Argument(
            metavar="BASE",
            help="The run before; with --against, the run after (newest).",
            autocompletion=completion.runs,
        ),
    ] = None,
    new: Annotated[
        str | None,
        typer.Argument(metavar="NEW", help="The run after, of the same sweep.", autocompletion=completion.runs),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="NAME",
            help="Compare NEW with this baseline instead of BASE.",
            autocompletion=completion.baselines,
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="LIMIT,...",
            help="Limits; exit code 1 beyond: memory:2%, memory:100MiB, speed:5%.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write Markdown for a pull request too.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the page with charts too.")] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show each peak's difference by category, and its causes.")
    ] = False,
    reports: Reports = REPORTS,
) -> Answer:
    """Compare two runs. Memory to the byte, speed with a significance test."""
    from zerobench.cli.compare import CompareRequest, compare_runs

    return compare_runs(
        CompareRequest(
            base, new, against, fail_on=fail_on, markdown=markdown, html=html, reports=reports, details=details
        )
    )
