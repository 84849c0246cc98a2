"""The memory of a run's ranks for Perfetto, as Chrome's trace format: a counter for each category, phases as slices.

    zerobench export RUN --perfetto run.json    # then open run.json at ui.perfetto.dev

A process is a rank of a trial. Time is not kept with the memory: a microsecond stands for an allocation or a free.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.records.records import MemoryCourse
from zerobench.report.export.chrome_trace import Event, counter, piece, process_name, thread_name, write_trace
from zerobench.report.export.timelines import NOTHING_KEPT, Timeline, sizes
from zerobench.report.figures.memory_courses import title


def write_perfetto(timelines: Iterable[Timeline], path: Path) -> int:
    """Write `timelines` to `path`, which appears whole, and return their number.

    Raises UserError: there are none, or `path` cannot be written.
    """
    known = list(timelines)
    if not known:
        raise UserError(f"--perfetto: {NOTHING_KEPT}")
    write_trace(
        "--perfetto", path, (event for process, timeline in enumerate(known, 1) for event in _events(timeline, process))
    )
    return len(known)


def _events(timeline: Timeline, process: int) -> Iterator[Event]:
    yield process_name(process, f"{timeline.label} rank {timeline.rank}, {timeline.evidence}")
    yield thread_name(process, process, "phases; 1 us is an allocation or a free")
    starts = accumulate((course.num_events for course in timeline.phases), initial=0)
    seen = list(dict.fromkeys(category for course in timeline.phases for category in course.sizes_bytes))
    for start, course in zip(starts, timeline.phases, strict=False):
        yield piece(process, process, title(course), start, course.num_events, args=_arguments(course))
        for instant, event in enumerate(course.events):
            held = sizes(course, instant)
            for category in seen:
                yield counter(process, category.words, start + event, held.get(category, 0))
            yield counter(process, "total", start + event, sum(held.values()))


def _arguments(course: MemoryCourse) -> dict[str, object]:
    peak = max(map(sum, zip(*course.sizes_bytes.values(), strict=True)))
    sites = {f"{category.words} allocated at": site for category, site in course.sites.items()}
    return {"peak bytes": peak, "allocations and frees": course.num_events, **sites}
