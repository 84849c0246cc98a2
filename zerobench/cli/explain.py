"""The work of `zerobench explain`: find the trials, print passages or JSON."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from zerobench import store
from zerobench.cli.answer import Answer
from zerobench.errors import UserError
from zerobench.report.explain.passage import as_data, as_text
from zerobench.report.explain.trial import explain as passages_of

_WIDTHS = (40, 100)
"""Columns of a line: no wider than people read, however wide the terminal is."""


def explain(run: str, trial: str, other: str | None, reports: Path) -> Answer:
    """Why `trial` of `run` took what it took, or why `other` differs from it.

    `other` may be of another run, as `RUN:TRIAL`. Raises UserError: there is no such run or trial, or several.
    """
    base = store.load_run(store.find_run(run, reports))
    second = None if other is None else _second(other, base, reports)
    found = passages_of(base, trial, second)
    return Answer(lambda: as_data(found), lambda: write(as_text(found, _width())))


def _second(name: str, base: store.Run, reports: Path) -> tuple[store.Run, str]:
    """The run and the name of the second trial; with a colon it is of another run."""
    run, colon, trial = name.rpartition(":")
    if not colon:
        return base, name
    try:
        return store.load_run(store.find_run(run, reports)), trial
    except UserError as error:
        raise UserError(f"TRIAL: {name!r}: {error}") from None


def _width() -> int:
    low, high = _WIDTHS
    return max(low, min(high, shutil.get_terminal_size((80, 24)).columns))


def write(text: str) -> None:
    """Print `text`; where the terminal lacks a character, a question mark in its place."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
