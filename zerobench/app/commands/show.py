"""`zerobench show`: the tables of a run."""

from __future__ import annotations

import json
from typing import Any

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import REPORTS, Reports, RunName


@answering
def show(
    run: RunName = None,
    reports: Reports = REPORTS,
) -> Answer:
    """Show the summary and tables of a run."""
    from zerobench.common.collection import no_collection

    with no_collection():
        from zerobench.records.store import find_run, load_run
        from zerobench.report.documents.show import show_run

        path = find_run(run, reports)

    def tables() -> None:
        with no_collection():
            show_run(path)

    def document() -> dict[str, Any]:
        from zerobench.report.export.frames_document import json_document
        from zerobench.report.figures.run.runs import run_figures

        with no_collection():
            return {"run": str(path), **json.loads(json_document(run_figures([load_run(path)])))}

    return Answer(document, tables)
