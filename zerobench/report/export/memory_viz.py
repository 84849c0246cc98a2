"""The memory of a trial's ranks as snapshots of torch, one file a trial, in which every block says its category.

    zerobench export RUN --memory-viz DIR    # then drop a file of DIR on pytorch.org/memory_viz

The category is a block's top frame and its colour; below it stand where most of its bytes were allocated and the phase
in which it grew. A device of the snapshot is a rank. A course keeps sizes and no addresses: each category lies in a
segment of its own, as large as the category ever was, so that segments add up to more than was reserved.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from pickle import dumps
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.temporary_files import replacing
from zerobench.common.vocabulary import Category
from zerobench.config.trial.trial import slug
from zerobench.records.folder import writing
from zerobench.report.export.timelines import NOTHING_KEPT, Timeline, sizes
from zerobench.report.figures.memory_courses import title

_APART_BYTES = 2**42
"""From the start of one segment to that of the next: more than any category has."""
_PROTOCOL = 4
"""The newest that the viewer's own reader knows."""

Frame = dict[str, str | int]
Event = dict[str, Any]


def write_memory_viz(timelines: Iterable[Timeline], folder: Path) -> int:
    """Write a file for each trial of `timelines`, which come trial by trial, to `folder`; return their number.

    Raises UserError: there are none, or `folder` cannot be written.
    """
    count = 0
    with writing(f"--memory-viz: {folder}"):
        for trial_id, ranks in groupby(timelines, lambda timeline: timeline.trial_id):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{slug(trial_id)}.pickle"
            with replacing(path) as temporary:
                temporary.write_bytes(dumps(snapshot(ranks), protocol=_PROTOCOL))
            count += 1
    if not count:
        raise UserError(f"--memory-viz: {NOTHING_KEPT}")
    return count


def snapshot(ranks: Iterable[Timeline]) -> dict[str, Any]:
    """Snapshot of the ranks of one trial, in the form of torch.cuda.memory._snapshot()."""
    segments, traces = [], []
    for device, timeline in enumerate(ranks):
        stacks = _stacks(timeline)
        traces.append(_trace(stacks))
        segments += [stack.segment(device) for stack in stacks]
    return {"segments": segments, "device_traces": traces, "external_annotations": [], "allocator_settings": {}}


@dataclass
class _Block:
    """Bytes of one category that came and went together."""

    address: int
    size: int
    born: int
    frames: list[Frame]
    died: int | None = None


@dataclass
class _Stack:
    """One category: what came last goes first, so that its blocks lie side by side."""

    category: Category
    start: int
    live: list[_Block] = field(default_factory=list)
    gone: list[_Block] = field(default_factory=list)
    most: int = 0

    @property
    def held(self) -> int:
        """Bytes that are live."""
        return sum(block.size for block in self.live)

    def become(self, size: int, at: int, frames: list[Frame]) -> None:
        """Hold `size` bytes from instant `at` on."""
        more = size - self.held
        if more > 0:
            self.live.append(_Block(self.start + self.held, more, at, frames))
        while more < 0:
            more += self._pop(-more, at)
        self.most = max(self.most, size)

    def _pop(self, wanted: int, at: int) -> int:
        """End the newest block, or its last `wanted` bytes, which have then been a block of their own."""
        block = self.live.pop()
        kept = max(0, block.size - wanted)
        if kept:
            self.live.append(_Block(block.address, kept, block.born, block.frames))
        self.gone.append(_Block(block.address + kept, block.size - kept, block.born, block.frames, at))
        return block.size - kept

    def segment(self, device: int) -> dict[str, Any]:
        """Blocks live at the end, in the segment of the category."""
        blocks: list[dict[str, Any]] = [
            {"state": "active_allocated", "size": block.size, "requested_size": block.size, "frames": block.frames}
            for block in self.live
        ]
        if self.most > self.held:
            free = self.most - self.held
            blocks.append({"state": "inactive", "size": free, "requested_size": free, "frames": []})
        return {
            "device": device,
            "address": self.start,
            "total_size": self.most,
            "allocated_size": self.held,
            "active_size": self.held,
            "requested_size": self.held,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [_frame(self.category.words)],
            "blocks": blocks,
        }


def _stacks(timeline: Timeline) -> list[_Stack]:
    """The blocks of each category over all phases, the largest first: the viewer has ten colours, in that order."""
    stacks: dict[Category, _Stack] = {}
    at = 0
    for course in timeline.phases:
        for instant in range(len(course.events)):
            held, at = sizes(course, instant), at + 1
            for category in dict.fromkeys([*stacks, *held]):
                stack = stacks.setdefault(category, _Stack(category, (len(stacks) + 1) * _APART_BYTES))
                frames = [_frame(category.words), *_site(course.sites.get(category)), _frame(f"during {title(course)}")]
                stack.become(held.get(category, 0), at, frames)
    return sorted((stack for stack in stacks.values() if stack.most), key=lambda stack: -stack.most)


def _trace(stacks: list[_Stack]) -> list[Event]:
    """Frees before allocations at each instant, so that no total is drawn that never was."""
    order = {"segment_alloc": 0, "free_requested": 1, "free_completed": 1, "alloc": 2}
    events = [event for stack in stacks for event in _history(stack)]
    events.sort(key=lambda event: (event["time_us"], order[event["action"]]))
    last = events[-1]["time_us"] if events else 0
    # The viewer wants the category `unknown` to be there where there are categories.
    end: Event = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": last, "frames": []}
    return [*events, {**end, "category": "unknown"}]


def _history(stack: _Stack) -> Iterator[Event]:
    name = stack.category.words
    usual = {"stream": 0, "category": name}
    frames = [_frame(name)]
    yield {"action": "segment_alloc", "addr": stack.start, "size": stack.most, "time_us": 0, "frames": frames, **usual}
    for block in [*stack.gone, *stack.live]:
        event = {"addr": block.address, "size": block.size, "frames": block.frames, **usual}
        yield {"action": "alloc", "time_us": block.born, **event}
        if block.died is not None:
            yield {"action": "free_requested", "time_us": block.died, **event}
            yield {"action": "free_completed", "time_us": block.died, **event}


def _frame(name: str, filename: str = "") -> Frame:
    return {"name": name, "filename": filename, "line": 0}


def _site(site: str | None) -> list[Frame]:
    """`file:function`, or a node of autograd."""
    filename, _, name = (site or "").rpartition(":")
    return [_frame(name, filename)] if site else []
