"""`zerobench doctor`: the checks as a table, Slurm's among them, then the kinds of trials that can run here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zerobench.app.terminal.answer import Answer
from zerobench.launch.setup.doctor import Finding, Standing, can_run, examine
from zerobench.launch.slurm.client import run_client
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


_PROGRAMS = ("sbatch", "squeue", "scontrol", "srun")
_PATIENCE_S = 5.0


def slurm_check() -> Iterator[Finding]:
    """Check that Slurm's programs are installed and its controller answers."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if len(missing) == len(_PROGRAMS):
        yield Finding("Slurm", Standing.MISSING, "its programs are not installed", "needed for zerobench submit only")
    elif missing:
        yield Finding("Slurm", Standing.MISSING, f"{', '.join(missing)} not found", "load Slurm's module")
    elif run_client(["scontrol", "ping"], _PATIENCE_S) is None:
        yield Finding("Slurm", Standing.MISSING, "slurmctld does not answer", "scontrol ping")
    else:
        version = (run_client(["scontrol", "--version"], _PATIENCE_S) or "").strip()
        yield Finding("Slurm", Standing.GOOD, f"{version} answers".strip())
