"""`zerobench doctor`: the checks as a table, then the kinds of trials that can run here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from zerobench.app.terminal.answer import Answer
from zerobench.launch.setup.doctor import Finding, can_run, examine
from zerobench.launch.slurm.presence import slurm_check
from zerobench.report.documents.terminal import print_parts
from zerobench.report.tables.model import Column
from zerobench.report.tables.part import Listing, Part

_COLUMNS: list[Column[Finding]] = [
    Column("check", lambda finding: finding.what, narrow="check", is_text=True, is_whole=True),
    Column("status", lambda finding: finding.standing.value, narrow="status", is_text=True),
    Column("finding", lambda finding: finding.finding, narrow="finding", is_text=True),
    Column("remedy", lambda finding: finding.remedy, narrow="remedy", is_text=True),
]


def doctor(reports: Path) -> Answer:
    """Check this machine; exit status 1 if no trial can run here, not even simulated."""
    findings = examine(reports, {"Slurm": slurm_check})
    kinds = can_run(findings)

    def show() -> None:
        words = [f"{'yes' if can else 'no':<4} {kind}" for kind, can in kinds.items()]
        print_parts([Part("Checks", table=Listing(_COLUMNS, findings)), Part("What can run here", text=words)])

    def document() -> dict[str, Any]:
        return {"can_run": kinds, "checks": [asdict(finding) for finding in findings]}

    return Answer(document, show, 0 if any(can for kind, can in kinds.items() if kind != "formula") else 1)
