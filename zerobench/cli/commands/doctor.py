"""`zerobench doctor`: what can run on this machine, and what to fix."""

from __future__ import annotations

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Reports


@answering
def doctor(reports: Reports = REPORTS) -> Answer:
    """Check what can run on this machine and what to fix. Exits with 1 if nothing can."""
    from zerobench.cli.doctor import doctor

    return doctor(reports)
