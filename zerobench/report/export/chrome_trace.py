"""Chrome's trace format, which ui.perfetto.dev opens: processes and threads with names, slices, counters."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zerobench.records.folder import write_whole, writing

Event = dict[str, Any]


def process_name(process: int, name: str) -> Event:
    """Event that names a process."""
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def thread_name(process: int, thread: int, name: str) -> Event:
    """Event that names a thread of a process."""
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}


def piece(process: int, thread: int, name: str, start_us: float, length_us: float, **more: object) -> Event:
    """A slice; `more`: its category `cat`, its `args`."""
    return {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": start_us, "dur": length_us, **more}


def counter(process: int, name: str, at_us: float, num_bytes: int) -> Event:
    """Event of a counter of bytes."""
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": at_us, "args": {"bytes": num_bytes}}


def write_trace(option: str, path: Path, events: Iterable[Event]) -> None:
    """Write `events` to `path`, which appears whole. Raises UserError, which names `option`: it cannot be written."""
    with writing(f"{option}: {path}"):
        write_whole(path, json.dumps({"traceEvents": list(events)}))
