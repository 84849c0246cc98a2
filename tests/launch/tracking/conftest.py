"""Commands that are watched, and what they leave."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.nvml_standin.standin import Standin
from zerobench.launch.tracking.command import CommandProgress, Show
from zerobench.launch.tracking.watch import WatchedRun, watch
from zerobench.records.store import Run, Trial, load_run


@dataclass
class Screen:
    """What a user would see."""

    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    told: list[CommandProgress] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self) -> Show:
        return Show(self.out.extend, self.err.extend, self.told.append, self.notes.append)


@dataclass(frozen=True)
class Seen:
    """A command that was watched to its end."""

    watched: WatchedRun
    screen: Screen

    @property
    def run(self) -> Run:
        return load_run(self.watched.folder.path)

    @property
    def trial(self) -> Trial:
        (trial,) = self.run.trials()
        return trial


Watcher = Callable[..., Seen]


@pytest.fixture
def watch_python(tmp_path: Path) -> Watcher:
    """Watch a Python program given as text; what else is given are its arguments."""

    def run(program: str, *arguments: str, name: str | None = None) -> Seen:
        screen = Screen()
        command = [sys.executable, "-c", program, *arguments]
        return Seen(watch(command, name=name, interval_s=0.01, reports=tmp_path / "r", show=screen.show()), screen)

    return run


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    return Standin.build(tmp_path_factory.mktemp("nvml"))
