"""Named runs for later comparisons: `reports/baselines/NAME`, each a run folder of its own.

A copy, because the run itself may be cleaned up; only what gates read is copied, so that it is small enough to commit.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from zerobench.common.errors import UserError, unknown_choice
from zerobench.common.temporary_files import temporary_name
from zerobench.records.folder import writing
from zerobench.records.store import load_run

_FOLDER = "baselines"
_NAME = re.compile(r"[\w-][\w.-]*", re.ASCII)
_LEFT_OUT = shutil.ignore_patterns("*.log", "*.csv", "*.parquet", "*.html", "checkpoint*", "swap*", ".*")


def set_baseline(name: str, run: Path, reports: Path) -> Path:
    """Copy `run` as the baseline `name`, replacing an earlier one; returns its folder.

    Raises UserError: the name cannot be a folder's, `run` is no run with an ended trial, or the copy cannot be written.
    """
    if _NAME.fullmatch(name) is None:
        raise UserError(f"NAME: {name!r}: letters, digits, dots, dashes and underscores, no dot first")
    if next(load_run(run).trials(), None) is None:
        raise UserError(f"RUN: {run}: no trial has ended yet")
    folder = reports / _FOLDER / name
    fresh = temporary_name(folder)
    try:
        with writing(f"--reports: {folder}"):
            shutil.copytree(run, fresh, ignore=_LEFT_OUT)
            shutil.rmtree(folder, ignore_errors=True)
            fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def baselines(reports: Path) -> dict[str, Path]:
    """Folders of the baselines, by name."""
    folder = reports / _FOLDER
    names = folder.iterdir() if folder.is_dir() else ()
    return {path.name: path for path in sorted(names) if not path.name.startswith(".")}


def find_baseline(name: str, reports: Path) -> Path:
    """Folder of the baseline called `name`. Raises UserError if there is none."""
    known = baselines(reports)
    if not known:
        raise UserError(f"no baseline under {reports} yet; keep one with: zerobench baseline set {name} RUN")
    if name not in known:
        raise unknown_choice("--against", name, known, "zerobench baseline list")
    return known[name]
