"""One mutant on trial: a fork of this process puts it in its module's place and runs the module's tests."""

from __future__ import annotations

import importlib
import os
import resource
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from benchmarks.mutants.finder import hand_on, put_in_place

SECONDS = 60
"""Processor time that a mutant may take: one that needs more goes on for ever."""


class Verdict(StrEnum):
    """How a mutant ended."""

    KILLED = "killed"
    SURVIVED = "survived"
    STILLBORN = "stillborn"
    """It cannot even be imported, and so says nothing of the tests; it counts nowhere."""


_EXIT_STATUS = {Verdict.SURVIVED: 98, Verdict.STILLBORN: 99}
"""Neither is one that a mutant could leave with by chance."""


@dataclass(frozen=True)
class Round:
    """Tests that run together."""

    files: tuple[str, ...]
    markers: str
    """pytest's -m."""


@dataclass(frozen=True)
class Case:
    """What is tried."""

    path: Path
    name: str
    """Of the module, dotted."""
    source: str | None
    """None: as it is."""
    rounds: tuple[Round, ...]
    """One after the other, until one kills."""


def begin(case: Case, imported: Path | None = None, said: Path | None = None) -> int:
    """Fork a process that tries `case`; its id. It never returns here.

    The names of the modules that it has imported in the end go to the file `imported`, what pytest prints to `said`.
    """
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _print_to(said or Path(os.devnull))
        status = _try(case)
        if imported is not None:
            imported.write_text("\n".join(sys.modules), encoding="utf-8")
    except BaseException:  # noqa: BLE001 -- whatever ends the tests has noticed the mutant
        status = 1
    finally:
        os._exit(status)


def verdict_of(wait_status: int) -> Verdict:
    """What the end of a process that `begin` started says. A signal is that of its limit, or the mutant's doing."""
    code = os.waitstatus_to_exitcode(wait_status)
    return next((verdict for verdict, known in _EXIT_STATUS.items() if known == code), Verdict.KILLED)


def _try(case: Case) -> int:
    if case.source is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        put_in_place(case.name, case.path, case.source)
        _forget_package_of(case.name)
        try:
            importlib.import_module(case.name)
        except Exception:  # noqa: BLE001 -- whatever it was
            return _EXIT_STATUS[Verdict.STILLBORN]
    good = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    with tempfile.TemporaryDirectory() as folder:
        if case.source is not None:
            hand_on(case.name, case.path, case.source, Path(folder))
        options = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", "--basetemp", f"{folder}/tests"]
        held = (tests for tests in case.rounds if tests.files)
        passes = all(pytest.main([*one.files, "-m", one.markers, *options]) in good for one in held)
    return _EXIT_STATUS[Verdict.SURVIVED] if passes else 1


def _forget_package_of(name: str) -> None:
    """Let the module be imported anew, as the mutant, where this process has it as it was; and whoever imported it."""
    if name in sys.modules:
        package = name.partition(".")[0]
        for imported in [each for each in sys.modules if each.partition(".")[0] == package]:
            del sys.modules[imported]


def _print_to(file: Path) -> None:
    """What tests of a mutant print is nobody's matter; of a module as it is, which of them fails."""
    opened = os.open(file, os.O_RDWR | os.O_CREAT)
    for descriptor in (0, 1, 2):
        os.dup2(opened, descriptor)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
