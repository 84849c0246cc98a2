"""A run, or several, as one JSON document: what was asked and where, then each trial with its peaks and its ranks.

For programs that want one file and no tables. Names carry their units as in the tables (schema.py), what is not
available is null, and so is a number that JSON cannot write (NaN, infinity).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from zerobench import __version__
from zerobench.common.plain_values import plain_value
from zerobench.common.redaction import redact_value
from zerobench.records.records import SCHEMA_VERSION
from zerobench.report.explain.decisions import decisions
from zerobench.report.export import schema
from zerobench.report.export.rows import PARTS, Row, error_rows, summary_row
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures

_KEY = {"run_id", "trial_id"}
_OF_TRIAL = ("peaks", "ranks", "notes")
"""The tables whose rows lie under the trial that they belong to."""
_ROWS_AT_ONCE = 1000


def json_document(runs: RunFigures) -> str:
    """The document, as text that ends in a newline."""
    return "".join(json_pieces(runs))


def json_pieces(runs: RunFigures) -> Iterator[str]:
    """The document a piece at a time: as plain values a run of ten thousand trials is ten times its frames."""
    about = {
        "schema_version": SCHEMA_VERSION,
        "zerobench": __version__,
        "decisions": [decision.model_dump(exclude={"schema_version", "judged"}) for decision in decisions(runs)],
        "runs": [
            {
                "run_id": run.run_id,
                "sweep": redact_value(run.sweep),
                "environment": run.environment,
                "nodes": run.nodes,
                "submitted_from": run.submitted_from,
                "not_ended": run.pending(),
            }
            for run in runs.runs
        ],
    }
    yield json.dumps(plain_value(about), indent=1, allow_nan=False).removesuffix("\n}")
    yield from _member("trials", _trials(runs.figures))
    yield from _member("errors", json_errors(runs, depth=2))
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


def json_errors(runs: RunFigures, depth: int) -> Iterator[str]:
    """Each prediction's rows beside what measured the same work (schema.ERRORS)."""
    rows = chain.from_iterable(map(error_rows, runs.predicted))
    return chain.from_iterable(json_rows(schema.ERRORS, some, depth) for some in _some_at_a_time(rows))


def _some_at_a_time(rows: Iterable[Any]) -> Iterator[list[Any]]:
    waiting = iter(rows)
    return iter(lambda: list(islice(waiting, _ROWS_AT_ONCE)), [])


def _trials(figures: Sequence[TrialFigures]) -> Iterator[str]:
    """Each trial with its rows in the other tables, some trials at a time."""
    for some in _some_at_a_time(figures):
        lists = [_lists(name, some) for name in _OF_TRIAL]
        for text, *of_trial in zip(json_rows(schema.SUMMARY, map(summary_row, some), depth=2), *lists, strict=True):
            yield "".join([text.removesuffix("\n  }"), *of_trial, "\n  }"])


def _lists(name: str, figures: Sequence[TrialFigures]) -> Iterator[str]:
    """For each trial its member `name`, a list of its rows in that table without their key."""
    columns, rows_of = PARTS[name]
    rows = [list(rows_of(trial)) for trial in figures]
    kinds = {column: kind for column, kind in columns.items() if column not in _KEY}
    texts = json_rows(kinds, chain.from_iterable(rows), depth=4)
    for mine in rows:
        listed = ",\n    ".join(islice(texts, len(mine)))
        yield f",\n   {json.dumps(name)}: [\n    {listed}\n   ]" if listed else f",\n   {json.dumps(name)}: []"


def json_rows(kinds: Mapping[str, str], rows: Iterable[Row], depth: int) -> Iterator[str]:
    """Each row, of columns of these `kinds`, as a JSON object in lines, those after the first `depth` places in.

    A column at a time: json's own writer of lines takes five times as long.
    """
    pad, lines = "\n" + " " * depth, list(rows)
    names = (json.dumps(name).replace("%", "%%") for name in kinds)
    form = "{" + ",".join(f"{pad} {name}: %s" for name in names) + f"{pad}}}"
    columns = (_texts(_CASTS.get(kind), [row.get(name) for row in lines]) for name, kind in kinds.items())
    return map(form.__mod__, zip(*columns, strict=True))


_CASTS = {schema.INTEGER: int, schema.FLOAT: float}
"""A sum of whole numbers may be a count where a fraction is due, and is written as one then."""


def _texts(cast: type[int | float] | None, values: list[Any]) -> list[str]:
    """The values of a column as JSON, null for what is not available."""
    plain = values if cast is None else [None if value is None else cast(value) for value in values]
    if not plain:
        return []
    try:
        text = _ENCODER.encode(plain)
    except ValueError:  # NaN or infinity
        text = _ENCODER.encode(plain_value(plain))
    # JSON has no bare end of a line within a value: what stands between two is one value.
    return text[1:-1].split("\n")


_ENCODER = json.JSONEncoder(separators=("\n", ": "), allow_nan=False)
