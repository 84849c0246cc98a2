"""The work of `zerobench explain`: find the trials, print passages or JSON."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from zerobench import store
from zerobench.errors import UserError
from zerobench.report.explain.passage import as_data, as_text
from zerobench.report.explain.trial import explain as passages_of

_WIDTHS = (40, 100)
"""Columns of a line: no wider than people read, however wide the terminal is."""


def explain(run: str, trial: str, other: str | None, reports: Path, *, as_json: bool) -> None:
    """Print why `trial` of `run` took what it took, or why `other` differs from it.

    `other` may be of another run, as `RUN:TRIAL`; without it `run` and `trial` may both be such.

    Raises UserError: there is no such run or trial, or several.
    """
    if other is None and ":" in run and not (reports / run).exists() and not Path(run).exists():
        (run, _, trial), other = run.rpartition(":"), trial
    base = store.load_run(store.find_run(run, reports))
    second = None if other is None else _second(other, base, reports)
    found = passages_of(base, trial, second)
    text = json.dumps(as_data(found), indent=2) if as_json else as_text(found, _width())
    write(text)


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
