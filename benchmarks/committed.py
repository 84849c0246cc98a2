"""Predictions count only if they were committed, as they are, before anything was measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

from zerobench.common.errors import UserError


def commit_of(path: Path) -> str:
    """The commit of the file and its date. Raises UserError where it is not there, or differs from what is."""
    if not path.is_file():
        raise UserError(f"{path}: there are no predictions; make them with the verb predict")
    commit = _git(path, "log", "-1", "--format=%h on %cI", "--", path.name)
    if not commit or _git(path, "status", "--porcelain", "--", path.name):
        raise UserError(f"{path}: predictions must be committed, as they are, before they are measured")
    return commit


def _git(path: Path, *arguments: str) -> str:
    """What git says of the file's folder; nothing outside of a checkout."""
    command = ["git", "-C", str(path.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
