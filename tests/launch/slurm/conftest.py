"""Slurm's programs, played by small scripts."""

import os
from pathlib import Path

import pytest

from tests.launch.slurm.standins import Standins, install


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standins:
    """A cluster that answers by itself; its programs come first in PATH."""
    standins = install(tmp_path / "slurm-programs")
    monkeypatch.setenv("PATH", f"{standins.folder}:{os.environ['PATH']}")
    return standins
