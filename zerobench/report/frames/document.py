"""A run, or several, as one JSON document: what was asked and where, then each trial with its peaks and its ranks.

For programs that want one file and no tables. Names carry their units as in the tables (schema.py), what is not
available is null, and so is a number that JSON cannot write (NaN, infinity).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from zerobench import __version__
from zerobench.records import SCHEMA_VERSION
from zerobench.redaction import redact_value
from zerobench.report.frames.run_frames import RunFrames

_KEY = ["run_id", "trial_id"]
_OF_TRIAL = ("peaks", "ranks", "notes")
"""The frames whose rows lie under the trial that they belong to."""
_TRIALS_AT_ONCE = 500


def json_document(frames: RunFrames) -> str:
    """The document, as text that ends in a newline."""
    return "".join(json_pieces(frames))


def json_pieces(frames: RunFrames) -> Iterator[str]:
    """The document a piece at a time: as plain values a run of ten thousand trials is ten times its frames."""
    about = {
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
    }
    yield _text(about, 0).removesuffix("\n}")
    yield from _array("trials", _trials(frames))
    yield from _array("errors", iter(_records(frames.errors)))
    yield "\n}\n"


def _array(name: str, values: Iterator[dict[str, Any]]) -> Iterator[str]:
    """A member of the document that is a list, with what comes before it."""
    yield f",\n {json.dumps(name)}: ["
    separator = "\n"
    for value in values:
        yield f"{separator}  {_text(value, 2)}"
        separator = ",\n"
    yield "]" if separator == "\n" else "\n ]"


def _text(value: Any, depth: int) -> str:
    """`value` as JSON in lines, those after the first `depth` places in."""
    return json.dumps(_writable(value), indent=1, allow_nan=False).replace("\n", "\n" + " " * depth)


def _trials(frames: RunFrames) -> Iterator[dict[str, Any]]:
    """Each trial with its rows in the other frames, some trials at a time."""
    places = {name: _places(getattr(frames, name)) for name in _OF_TRIAL}
    for start in range(0, len(frames.trials), _TRIALS_AT_ONCE):
        some = _records(frames.trials.iloc[start : start + _TRIALS_AT_ONCE])
        keys = [tuple(values[name] for name in _KEY) for values in some]
        parts = {name: _by_trial(getattr(frames, name), places[name], keys) for name in _OF_TRIAL}
        for key, values in zip(keys, some, strict=True):
            yield {**values, **{name: rows.get(key, []) for name, rows in parts.items()}}


def _places(frame: pd.DataFrame) -> Mapping[Any, Any]:
    """In which rows of `frame` each trial is."""
    places: Mapping[Any, Any] = frame.groupby(_KEY, sort=False).indices
    return places


def _by_trial(frame: pd.DataFrame, places: Mapping[Any, Any], keys: Sequence[Any]) -> dict[Any, list[dict[str, Any]]]:
    """The rows of the trials `keys`, without their key."""
    rows: dict[Any, list[dict[str, Any]]] = {}
    wanted = [place for key in keys for place in places.get(key, ())]
    for values in _records(frame.iloc[wanted]):
        rows.setdefault(tuple(values.pop(name) for name in _KEY), []).append(values)
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
