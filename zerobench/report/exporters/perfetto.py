"""The memory of a run's ranks for Perfetto, as Chrome's trace format: a counter for each category, phases as slices.

    zerobench export RUN --perfetto run.json    # then open run.json at ui.perfetto.dev

A process is a rank of a trial. Time is not kept with the memory: a microsecond stands for an allocation or a free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from zerobench.errors import UserError
from zerobench.folder import write_whole
from zerobench.records import MemoryCourse
from zerobench.report.exporters.timelines import NOTHING_KEPT, Timeline, sizes, words
from zerobench.report.memory_courses import title

Event = dict[str, Any]


def write_perfetto(timelines: Iterable[Timeline], path: Path) -> int:
    """Write `timelines` to `path`, which appears whole, and return their number.

    Raises UserError: there are none, or `path` cannot be written.
    """
    known = list(timelines)
    if not known:
        raise UserError(f"--perfetto: {NOTHING_KEPT}")
    events = [event for process, one in enumerate(known, 1) for event in _events(one, process)]
    try:
        write_whole(path, json.dumps({"traceEvents": events}))
    except OSError as error:
        raise UserError(f"--perfetto: {path}: cannot be written: {error.strerror or error}") from None
    return len(known)


def _events(one: Timeline, process: int) -> Iterator[Event]:
    own = {"pid": process, "tid": process}
    yield {"ph": "M", "name": "process_name", "args": {"name": f"{one.label} rank {one.rank}, {one.evidence}"}, **own}
    yield {"ph": "M", "name": "thread_name", "args": {"name": "phases; 1 us is an allocation or a free"}, **own}
    starts = accumulate((course.num_events for course in one.phases), initial=0)
    seen = list(dict.fromkeys(category for course in one.phases for category in course.sizes_bytes))
    for start, course in zip(starts, one.phases, strict=False):
        yield {"ph": "X", "name": title(course), "ts": start, "dur": course.num_events, "args": _said(course), **own}
        for instant, event in enumerate(course.events):
            held = sizes(course, instant)
            for category in seen:
                yield _counter(words(category), held.get(category, 0), start + event, own)
            yield _counter("total", sum(held.values()), start + event, own)


def _counter(name: str, size: int, at: int, own: Event) -> Event:
    return {"ph": "C", "name": name, "ts": at, "args": {"bytes": size}, **own}


def _said(course: MemoryCourse) -> dict[str, object]:
    peak = max(map(sum, zip(*course.sizes_bytes.values(), strict=True)))
    sites = {f"{words(category)} allocated at": site for category, site in course.sites.items()}
    return {"peak bytes": peak, "allocations and frees": course.num_events, **sites}
