"""The predicted steps of a run for Perfetto, as Chrome's trace format: what runs on which lane, and what is exposed.

    zerobench export RUN --step-timeline steps.json    # then open steps.json at ui.perfetto.dev

A process is a trial, a thread one of its lanes (zerobench.estimate.clock.replay).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.estimate.clock.replay import Timeline
from zerobench.estimate.time.predicted_speed import predicted_timeline
from zerobench.records import store
from zerobench.records.trials import ended_trials
from zerobench.report.export.chrome_trace import Event, piece, process_name, thread_name, write_trace
from zerobench.report.words.labels import labels

_MICROSECONDS = 1e6


def write_step_timelines(run: store.Run, path: Path) -> int:
    """Write the steps of `run` to `path`, which appears whole, and return their number.

    Raises UserError: no trial has a trace, or `path` cannot be written.
    """
    trials = list(ended_trials(run))
    events: list[Event] = []
    written = 0
    for label, trial in zip(labels([trial.spec for trial in trials]), trials, strict=True):
        timeline = predicted_timeline(trial)
        if timeline is not None:
            written += 1
            events += step_events(timeline, label, written)
    if not written:
        raise UserError("--step-timeline: no trial has a trace of its step; simulated ones on a GPU do")
    write_trace("--step-timeline", path, events)
    return written


def step_events(timeline: Timeline, label: str, process: int) -> Iterator[Event]:
    """One step's lanes, named, and what was under way on them; times in microseconds."""
    yield process_name(process, f"{label}, expected step")
    lanes = timeline.lanes()
    threads = {lane: thread for thread, lane in enumerate(lanes)}
    yield from (thread_name(process, thread, lane) for lane, thread in threads.items())
    named = [(span.lane, span.name, span.phase, span.start_s, span.end_s) for span in timeline.spans]
    named += [("exposed", "exposed communication", "", start, end) for start, end in lanes.get("exposed", [])]
    for lane, name, phase, start, end in named:
        times = start * _MICROSECONDS, (end - start) * _MICROSECONDS
        yield piece(process, threads[lane], name, *times, cat=phase)
