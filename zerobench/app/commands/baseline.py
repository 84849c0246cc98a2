"""`zerobench baseline`: runs stored under a name, for `compare --against`."""

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import REPORTS, Reports, RunName
from zerobench.common.errors import UserError, unknown_choice


@answering
def baseline(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="`set` or `list` (the default).")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the baseline, for example main.")] = None,
    run: RunName = None,
    reports: Reports = REPORTS,
) -> Answer:
    """Store a run as a named baseline, or list baselines. For `compare --against NAME`."""
    from zerobench.records.baselines import baselines, set_baseline
    from zerobench.records.store import find_run, load_run

    if action not in {"set", "list"}:
        raise unknown_choice("ACTION", action, ["set", "list"])
    if action == "set":
        if name is None:
            raise UserError("NAME is missing: zerobench baseline set NAME [RUN]")
        set_baseline(name, find_run(run, reports), reports)
    elif name is not None:
        raise UserError(f"NAME: {name!r}: list takes no name")
    entries = [
        {"baseline": baseline_name, "run_id": load_run(path).run_id, "folder": str(path)}
        for baseline_name, path in baselines(reports).items()
    ]

    def show() -> None:
        for entry in entries:
            typer.echo(f"{entry['baseline']}: {entry['run_id']}, in {entry['folder']}")
        if not entries:
            typer.echo("no baseline yet; keep one with: zerobench baseline set NAME RUN")

    return Answer(lambda: {"baselines": entries}, show)
