"""A run, or several, as one JSON document: what was asked and where, then each trial with its peaks and its ranks.

For programs that want one file and no tables. Names carry their units as in the tables (schema.py), what is not
available is null, and so is a number that JSON cannot write (NaN, infinity).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import pandas as pd

from zerobench import __version__
from zerobench.plain_values import plain_value
from zerobench.records import SCHEMA_VERSION
from zerobench.redaction import redact_value
from zerobench.report.frames.run_frames import RunFrames

_KEY = ["run_id", "trial_id"]
_OF_TRIAL = ("peaks", "ranks", "notes")
"""The frames whose rows lie under the trial that they belong to."""
_TRIALS_AT_ONCE = 1000


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
    yield json.dumps(plain_value(about), indent=1, allow_nan=False).removesuffix("\n}")
    yield from _member("trials", _trials(frames))
    yield from _member("errors", json_rows(frames.errors, depth=2))
    yield "\n}\n"


def _member(name: str, values: Iterable[str]) -> Iterator[str]:
    """A member of the document that is a list of `values`, with what comes before it."""
    yield f",\n {json.dumps(name)}: ["
    separator = "\n  "
    for value in values:
        yield separator
        yield value
        separator = ",\n  "
    yield "]" if separator == "\n  " else "\n ]"


def _trials(frames: RunFrames) -> Iterator[str]:
    """Each trial with its rows in the other frames, some trials at a time."""
    parts = {name: getattr(frames, name) for name in _OF_TRIAL}
    places = {name: _places(frame) for name, frame in parts.items()}
    for start in range(0, len(frames.trials), _TRIALS_AT_ONCE):
        some = frames.trials.iloc[start : start + _TRIALS_AT_ONCE]
        keys = list(zip(*(some[name] for name in _KEY), strict=True))
        lists = [_lists(name, parts[name], [places[name].get(key, ()) for key in keys]) for name in parts]
        for text, *of_trial in zip(json_rows(some, depth=2), *lists, strict=True):
            yield "".join([text.removesuffix("\n  }"), *of_trial, "\n  }"])


def _places(frame: pd.DataFrame) -> Mapping[Any, Any]:
    """In which rows of `frame` each trial is."""
    places: Mapping[Any, Any] = frame.groupby(_KEY, sort=False).indices
    return places


def _lists(name: str, frame: pd.DataFrame, places: Sequence[Sequence[int]]) -> Iterator[str]:
    """For each trial its member `name`, a list of its rows in `frame` without their key."""
    rows = iter(json_rows(frame.iloc[list(chain.from_iterable(places))].drop(columns=_KEY), depth=4))
    for mine in places:
        texts = ",\n    ".join(islice(rows, len(mine)))
        yield f",\n   {json.dumps(name)}: [\n    {texts}\n   ]" if texts else f",\n   {json.dumps(name)}: []"


def json_rows(frame: pd.DataFrame, depth: int) -> Iterator[str]:
    """Each row as a JSON object in lines, those after the first `depth` places in.

    A column at a time: json's own writer of lines takes five times as long.
    """
    pad = "\n" + " " * depth
    names = (json.dumps(str(name)).replace("%", "%%") for name in frame)
    form = "{" + ",".join(f"{pad} {name}: %s" for name in names) + f"{pad}}}"
    return map(form.__mod__, zip(*(_texts(frame[name]) for name in frame), strict=True))


def _texts(column: pd.Series[Any]) -> list[str]:
    """The values of a column as JSON, null for what is not available."""
    plain = column.astype(object).where(column.notna(), None).tolist()
    if not plain:
        return []
    try:
        text = _ENCODER.encode(plain)
    except ValueError:  # NaN or infinity
        text = _ENCODER.encode(plain_value(plain))
    # JSON has no bare end of a line within a value: what stands between two is one value.
    return text[1:-1].split("\n")


_ENCODER = json.JSONEncoder(separators=("\n", ": "), allow_nan=False)
