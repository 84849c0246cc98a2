"""`zerobench doctor`: what can run on this machine, and what to fix."""

from __future__ import annotations

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import REPORTS, PythonPath, Reports


@answering
def doctor(
    python: PythonPath = None,  # noqa: ARG001 -- its callback does the work
    reports: Reports = REPORTS,
) -> Answer:
    """Check what can run on this machine and what to fix. Exits with 1 if nothing can."""
    from zerobench.app.terminal.doctor import doctor

    return doctor(reports)
