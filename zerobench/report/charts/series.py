"""Lines of charts and their names: a line joins trials that are alike in all but what the chart varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from zerobench.common.grouped import grouped
from zerobench.config.axes.axes import LINE_COLUMNS
from zerobench.config.axes.axis import Column
from zerobench.report.export.rows import keys_of
from zerobench.report.export.schema import KEYS
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words.column_units import plain

MOST_LINES = 16
"""Lines in one chart."""

_NAMES_ONE = {"trial_id", "config_hash", "repeat", "zero_stage"}
"""Keys that name a trial, or follow from its strategy, and are no axis of it."""

ALIKE = (*(name for name in KEYS if name not in _NAMES_ONE), "gpu", "settings")
"""What makes trials alike, but for what a chart varies: all that defines a trial (schema.KEYS), the GPU that it is
predicted for, and `settings`, DeepSpeed's keys that the sweep sets. A test holds that no axis is missing."""

_COMPARED = {"strategy", "offload_optimizer", "offload_param", "optimizer", "evidence", "settings"}
"""Axes that lines are drawn beside each other for; in all else they had better be alike."""

Facts = Mapping[str, Any]
"""Settings of a trial, by the names of ALIKE."""


@dataclass(frozen=True)
class Place:
    """A trial on a line."""

    trial: TrialFigures
    x: float
    y: float
    interval: tuple[float, float] | None = None
    """80% interval of an expected y."""
    is_best: bool = False
    """True if it is on the front of its plot, where it has one."""


@dataclass(frozen=True)
class Series:
    """A line: trials alike in all but what is varied."""

    name: str
    places: Sequence[Place]

    @property
    def medians(self) -> list[tuple[float, float]]:
        """The middle of its trials at each x: one, but for repeats and settings that no column names."""
        values = {place.x for place in self.places}
        return [(x, median(place.y for place in self.places if place.x == x)) for x in sorted(values)]


_COLUMNS = {column.name: column for column in (Column("run_id", str, line=lambda value: f"@ {value}"), *LINE_COLUMNS)}
"""Columns that the name of a line may have, in its order."""


def _text(name: str, value: Any) -> str:
    """Value of the column in a line's name; empty where there is none, or it is the usual one."""
    column = _COLUMNS[name]
    return "" if column.line is None or value is None or value == column.silent else column.line(value)


def assign_series(
    places: Sequence[Place], varying: Sequence[str], fixed: Sequence[str] = ()
) -> tuple[list[Series], int]:
    """The lines that `places` are on; and how many lines there are.

    A line joins trials alike in ALIKE but for `varying`, and in `fixed`, and has two values of x at least. Of more than
    MOST_LINES those are kept that are alike in most but strategy and offload.
    """
    alike = [name for name in (*ALIKE, *fixed) if name not in varying]
    facts = {id(place): _facts(place.trial) for place in places}
    groups = grouped(places, lambda place: tuple(facts[id(place)][name] for name in alike))
    lines = [line for line in groups.values() if len({place.x for place in line}) >= 2]
    rest = [name for name in alike if name not in _COMPARED]
    kept = _most_comparable(lines, lambda place: tuple(facts[id(place)][name] for name in rest))
    names = _names([facts[id(line[0])] for line in kept], alike)
    return [Series(name, line) for name, line in zip(names, kept, strict=True)], len(lines)


def _facts(trial: TrialFigures) -> Facts:
    spec = trial.spec
    return {
        **keys_of(spec, trial.run_id, trial.config_hash, trial.num_params),
        "gpu": trial.gpu,
        "settings": trial.settings,
        "global_batch_size": spec.global_batch_size,
    }


def _most_comparable(lines: Sequence[list[Place]], frame_of: Callable[[Place], Any]) -> list[list[Place]]:
    """At most MOST_LINES of `lines`: those whose frame, what they are alike in, has most lines, on most ranks, where
    stages differ most.

    A second frame is added only where all of it has room.
    """
    frames = grouped(lines, lambda line: frame_of(line[0]))

    def rank(frame: Any) -> tuple[float, ...]:
        places = [place for line in frames[frame] for place in line]
        length = max(len({place.x for place in line}) for line in frames[frame])
        ranks = max(place.trial.spec.world_size for place in places)
        return length, len(frames[frame]), ranks, max(place.y for place in places)

    chosen: set[Any] = set()
    room = MOST_LINES
    for frame in sorted(frames, key=rank, reverse=True):
        room -= len(frames[frame])
        if chosen and room < 0:
            break
        chosen.add(frame)
    return [line for line in lines if frame_of(line[0]) in chosen][:MOST_LINES]


def left_out_sentence(drawn: Sequence[Series], number: int) -> str:
    """Sentence of a caption on lines that are not drawn."""
    if len(drawn) >= number:
        return ""
    return f" {len(drawn)} of {number:,} lines: those with the fewest other differences."


def _names(lines: Sequence[Facts], alike: Sequence[str]) -> list[str]:
    """Names that distinguish the lines, each with the strategy."""
    columns = [
        name for name in _COLUMNS if name in alike and (name == "strategy" or len({line[name] for line in lines}) > 1)
    ]
    others = [name for name in columns if name != "settings"]  # each stage has its own: those that no other reads
    if len({tuple(line[name] for name in others) for line in lines}) == len(lines):
        columns = others
    return [plain(" ".join(text for name in columns if (text := _text(name, line[name])))) for line in lines]
