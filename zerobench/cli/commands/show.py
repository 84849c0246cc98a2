"""`zerobench show`: the tables of a run."""

from __future__ import annotations

import json
from typing import Any

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Reports, RunName


@answering
def show(
    run: RunName = None,
    reports: Reports = REPORTS,
) -> Answer:
    """Show the summary and tables of a run."""
    from zerobench.collection import no_collection

    with no_collection():
        from zerobench.report.terminal.show import show_run
        from zerobench.store import find_run, load_run

        path = find_run(run, reports)

    def tables() -> None:
        with no_collection():
            show_run(path)

    def document() -> dict[str, Any]:
        from zerobench.report.figures.runs import run_figures
        from zerobench.report.frames.document import json_document

        with no_collection():
            return {"run": str(path), **json.loads(json_document(run_figures([load_run(path)])))}

    return Answer(document, tables)
