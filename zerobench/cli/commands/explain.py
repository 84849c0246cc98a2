"""`zerobench explain`: why a trial took what it took, or why it differs from another."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.cli.options import REPORTS, Reports


def explain(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder or its name; or RUN:TRIAL, then a second one.")
    ],
    trial: Annotated[str, typer.Argument(metavar="TRIAL", help="Its name in the tables, its id, or the start of one.")],
    other: Annotated[
        str | None, typer.Argument(metavar="[TRIAL]", help="A second one, of another run as RUN:TRIAL.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures and sentences as JSON.")] = False,
    reports: Reports = REPORTS,
) -> None:
    """Say why a trial took what it took, or why it differs from another."""
    from zerobench.cli.explain import explain

    explain(run, trial, other, reports, as_json=as_json)
