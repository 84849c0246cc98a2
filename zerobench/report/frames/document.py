"""A run, or several, as one JSON document: what was asked and where, then each trial with its peaks and its ranks.

For programs that want one file and no tables. Names carry their units as in the tables (schema.py), what is not
available is null, and so is a number that JSON cannot write (NaN, infinity).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from zerobench import __version__
from zerobench.records import SCHEMA_VERSION
from zerobench.redaction import redact_value
from zerobench.report.frames.run_frames import RunFrames

_KEY = ["run_id", "trial_id"]
_OF_TRIAL = ("peaks", "ranks", "notes")
"""The frames whose rows lie under the trial that they belong to."""


def json_document(frames: RunFrames) -> str:
    """The document, as text that ends in a newline."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "zerobench": __version__,
        "runs": [
            {
                "run_id": run.run_id,
                "sweep": redact_value(run.sweep),
                "environment": run.environment,
                "nodes": run.nodes,
                "submitted_from": run.submitted_from,
                "not_ended": run.pending(),
            }
            for run in frames.runs
        ],
        "trials": _trials(frames),
        "errors": _records(frames.errors),
    }
    return json.dumps(_writable(document), indent=1, allow_nan=False) + "\n"


def _trials(frames: RunFrames) -> list[dict[str, Any]]:
    parts = {name: _by_trial(getattr(frames, name)) for name in _OF_TRIAL}
    return [
        {**values, **{name: rows.get((values["run_id"], values["trial_id"]), []) for name, rows in parts.items()}}
        for values in _records(frames.trials)
    ]


def _by_trial(frame: pd.DataFrame) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of each trial, without its key."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for values in _records(frame):
        run_id, trial_id = (values.pop(name) for name in _KEY)
        rows.setdefault((run_id, trial_id), []).append(values)
    return rows


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain values, None for what is not available."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def _writable(value: Any) -> Any:
    """`value` as JSON has it; a date in a sweep is its text."""
    if isinstance(value, Mapping):
        return {str(key): _writable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
