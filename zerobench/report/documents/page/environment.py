"""Environments of the runs, a column for each run: versions, driver, GPUs and their links, machine, limits, variables.

environment.json grows with what a capture learns to look at, so nothing here knows its keys but for their order and
their units: what is new appears by itself, under its own name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

from zerobench.common.units import format_bytes
from zerobench.report.tables.grid import Grid, grid
from zerobench.report.tables.model import Column
from zerobench.report.words.column_units import MISSING

_SECTIONS = {
    "versions": "Software versions",
    "hardware": "Hardware and driver",
    "source": "Source, builds and environment variables",
}
_SECTION_OF = {"versions": "versions", "torch_build": "source", "git": "source", "variables": "source"}

Values = dict[str, str]
"""Text by dotted name."""


@dataclass(frozen=True)
class _Line:
    """One thing that the capture looked at, and what it was in each run."""

    name: str
    values: Sequence[str]


def environment_grids(environments: Mapping[str, Mapping[str, Any]]) -> list[Grid]:
    """A table for versions, hardware and source; what no run knows is left out."""
    flat = {run_id: _sections(environment) for run_id, environment in environments.items()}
    grids = []
    for section, caption in _SECTIONS.items():
        by_run = {run_id: sections.get(section, {}) for run_id, sections in flat.items()}
        names = dict.fromkeys(name for values in by_run.values() for name in values)
        lines = [_Line(name, [values.get(name, MISSING) for values in by_run.values()]) for name in names]
        if lines:
            heads = by_run if len(by_run) > 1 else ["value"]
            columns = [Column[_Line]("name", lambda line: line.name, is_text=True), *map(_column, heads, count())]
            grids.append(grid(caption, columns, lines))
    return grids


def _column(head: str, index: int) -> Column[_Line]:
    return Column(head, lambda line: line.values[index], is_text=True)


def _sections(environment: Mapping[str, Any]) -> dict[str, Values]:
    """The leaves of an environment by the table that they belong to."""
    sections: dict[str, Values] = {}
    for key, value in environment.items():
        section = _SECTION_OF.get(key, "hardware")
        prefix = () if key in {"versions", "machine"} else (key,)
        sections.setdefault(section, {}).update(_flat(prefix, value))
    return sections


def _flat(path: Sequence[str], value: Any) -> Iterator[tuple[str, str]]:
    """Each leaf with its name; None, and a list of nothing, are left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat([*path, str(key)], inner)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        yield from _listed(path, value)
    elif value is not None and value != []:
        yield _name(path), _leaf(path[-1] if path else "", value)


def _listed(path: Sequence[str], items: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """A list of mappings, as GPUs or NUMA nodes: a line each."""
    for index, item in enumerate(items):
        parts = dict(_flat((), item)) if isinstance(item, Mapping) else {"": str(item)}
        yield f"{_name(path)} {index}", ", ".join(f"{name} {text}".strip() for name, text in parts.items())


def _name(path: Sequence[str]) -> str:
    """`driver.cuda_version` as `driver, cuda version`, without the unit that the value brings."""
    return ", ".join(_words(part) for part in path)


def _words(key: str) -> str:
    """A key in words; the name of an environment variable, which has capitals, stays what it is."""
    return key.removesuffix("_bytes").removesuffix("_at_s").replace("_", " ") if key.islower() else key


def _leaf(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if key.endswith("_at_s") and isinstance(value, int | float):
        return utc_text(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def utc_text(seconds: float) -> str:
    """A Unix time as `2026-01-02 03:04 UTC`; the number itself where no calendar has such a day."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        return str(seconds)
