"""`zerobench report`: a page, Markdown, CSV or JSON of one run or several."""

from pathlib import Path
from typing import Annotated

import typer

from zerobench.app.terminal import completion
from zerobench.app.terminal.answer import Quiet
from zerobench.app.terminal.options import REPORTS, Reports


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Run folders or names (newest run).", autocompletion=completion.runs),
    ] = None,
    html: Annotated[bool, typer.Option("--html", help="One page with every chart and table (the default).")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request or a model card.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Tidy tables of all runs, into a folder.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One document: trials and their peaks.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", help="Output path (beside the run); `-` prints, except --csv."),
    ] = None,
    reports: Reports = REPORTS,
    quiet: Quiet = False,
) -> None:
    """Write a report as a page, Markdown, CSV or JSON. For one run or several."""
    from zerobench.app.terminal.report import STANDARD_OUTPUT, ReportRequest, write_reports

    chosen = {"html": html, "markdown": markdown, "csv": csv, "json": json}
    formats = [name for name, is_chosen in chosen.items() if is_chosen] or ["html"]
    for line in write_reports(ReportRequest(runs=runs or [], formats=formats, out=out, reports=reports)):
        if not quiet or out == STANDARD_OUTPUT:
            typer.echo(line, nl=not line.endswith("\n"))
