"""Device memory over start-up and one step, by category, as it ran: areas over the order of allocations and frees.

Each phase has the same width, so that trials whose phases differ in length can be laid side by side.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import altair as alt

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Phase
from zerobench.records.records import MemoryCourse
from zerobench.report.charts.bar_marks import group_colour, group_names
from zerobench.report.charts.render import (
    Mark,
    Specification,
    arranged,
    drawing,
    haloed,
    in_columns,
    layered,
    mark,
    reach,
    size_axis,
)
from zerobench.report.charts.shown import OWN_AXIS, axis_top, ending, most_telling, whole
from zerobench.report.charts.stack import ORDER
from zerobench.report.figures.memory_courses import ranks_with_courses, read_courses, title
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words import palette
from zerobench.report.words.column_units import Unit, byte_axis

KEY = "memory-over-the-step"
MOST_TRIALS = 6
_HEIGHT = 170
_THINNEST = 0.003
"""Share of the axis: what is thinner at its thickest is left to the table."""


@dataclass(frozen=True)
class _Panel:
    """One trial's course."""

    trial: TrialFigures
    rank: int
    phases: Sequence[MemoryCourse]

    @property
    def peak(self) -> tuple[float, int]:
        """Position and height of the largest total after start-up."""
        steady = [index for index, course in enumerate(self.phases) if course.phase is not Phase.INIT]
        instants = ((at, total) for index in steady for at, total in _totals(index, self.phases[index]))
        return max(instants, key=lambda instant: instant[1])

    @property
    def top(self) -> int:
        """The most that is drawn."""
        return max(total for index, course in enumerate(self.phases) for _, total in _totals(index, course))


def _totals(index: int, course: MemoryCourse) -> Iterator[tuple[float, int]]:
    return zip(_places(index, course), map(sum, zip(*course.sizes_bytes.values(), strict=True)), strict=True)


def _places(index: int, course: MemoryCourse) -> list[float]:
    return [index + event / max(1, course.num_events) for event in course.events]


def figure(runs: RunFigures) -> Figure | None:
    """The courses of a few trials; None where none kept one.

    Raises UserError: a course is torn, corrupt or newer than this version.
    """
    known = [trial for trial in whole(runs.figures) if kept_by(runs, trial) is not None]
    chosen = most_telling(known, lambda trial: trial.device_peak_bytes or 0, MOST_TRIALS)
    panels = [panel for trial in chosen if (panel := _panel(runs, trial)) is not None]
    if not panels:
        return None
    unit = byte_axis(panel.top for panel in panels)
    heading = "Device memory over the step, by category"
    caption = (
        (
            "Start-up, then one steady step, in the order of allocations and frees; phases of equal width. "
            "Shared memory axis, except for outliers. Dot: the step's peak. Hover for category and "
            "allocation site."
        )
        + _sources(panels)
        + ending(chosen, len(panels), len(known)).replace("Hatched or hollow: ", "Some are ")
    )
    plot = partial(_plot, panels, unit)
    return Figure(KEY, heading, caption, drawing(plot, KEY, heading), _table(panels, unit))


def _plot(panels: Sequence[_Panel], unit: Unit, *, width: float) -> Specification:
    columns, each = in_columns(width, len(panels))
    names = group_names(width)
    kept = {palette.GROUP_OF[size.value] for panel in panels for phase in panel.phases for size in phase.sizes_bytes}
    colour = group_colour([group for group in palette.CATEGORY_COLOURS if group in kept], names)
    plots = [_panel_plot(panel, unit, panels, each, colour, names) for panel in panels]
    return arranged(plots, columns, 18, y="independent", x="independent")


def kept_by(runs: RunFigures, trial: TrialFigures) -> int | None:
    """The lowest rank that kept a course."""
    folder = runs.run(trial.run_id).folder.trial(trial.trial_id)
    return next(iter(ranks_with_courses(folder, (rank.rank for rank in trial.ranks))), None)


def _panel(runs: RunFigures, trial: TrialFigures) -> _Panel | None:
    rank = kept_by(runs, trial)
    if rank is None:
        return None
    phases = read_courses(runs.run(trial.run_id).folder.trial(trial.trial_id), rank)
    return None if all(phase.phase is Phase.INIT for phase in phases) else _Panel(trial, rank, phases)


def _panel_plot(
    panel: _Panel, unit: Unit, panels: Sequence[_Panel], width: float, colour: alt.Color, names: Mapping[str, str]
) -> Specification:
    highest, has_own_axis = axis_top(panel.top, [other.top for other in panels])
    top = unit.of(highest) * 1.16
    y = size_axis("low:Q", unit.name, top)
    x = alt.X("at:Q", axis=None, scale=reach(0, len(panel.phases)))
    # An area for each category and phase, stacked in the order of the bars of the first figure.
    rows = [row for index in range(len(panel.phases)) for row in _rows(panel, index, unit, top, names)]
    place = {"x": x, "y": y, "y2": "high:Q", "color": colour, "detail": "area:N", "description": "description:N"}
    layers = [mark("area", rows, place, line=False), *_phases(panel, x), *_peak(panel, unit, x, y)]
    return layered(layers, width, _HEIGHT, panel.trial.marked_label + (OWN_AXIS if has_own_axis else ""))


def _rows(panel: _Panel, index: int, unit: Unit, top: float, names: Mapping[str, str]) -> Iterator[dict[str, object]]:
    course = panel.phases[index]
    places = _places(index, course)
    ordered = sorted(course.sizes_bytes, key=lambda category: ORDER.index(palette.GROUP_OF[category.value]))
    heights = [[max(0, size) for size in course.sizes_bytes[category]] for category in ordered]
    stack = list(accumulate(heights, lambda low, size: [a + b for a, b in zip(low, size, strict=True)]))
    for category, sizes, ends in zip(ordered, heights, stack, strict=True):
        if unit.of(max(sizes)) < _THINNEST * top:
            continue
        description = _description(panel, course, category)
        for place, size, end in zip(places, sizes, ends, strict=True):
            yield {
                "at": round(place, 4),
                "low": round(unit.of(end - size), 4),
                "high": round(unit.of(end), 4),
                "group": names[palette.GROUP_OF[category.value]],
                "area": f"{index} {category.value}",
                "description": description,
            }


def _description(panel: _Panel, course: MemoryCourse, category: Category) -> str:
    most = format_bytes(max(course.sizes_bytes[category]))
    site = course.sites.get(category)
    where = f"\nmain allocation site: {site}" if site else ""
    return f"{panel.trial.marked_label}, {title(course)}, {category.words}: up to {most}{where}"


def _phases(panel: _Panel, x: alt.X) -> list[Mark]:
    """The names of the phases, and lines between them."""
    names = [{"at": index + 0.5, "text": title(course)} for index, course in enumerate(panel.phases)]
    ends = [{"at": index} for index in range(1, len(panel.phases))]
    place = {"x": x, "y": alt.value(_HEIGHT + 5), "text": "text:N"}
    return [
        mark("rule", ends, {"x": x}, color="var(--muted)", strokeDash=[2, 3], aria=False),
        mark("text", names, place, fontSize=11, baseline="top", color="var(--muted)"),
    ]


def _peak(panel: _Panel, unit: Unit, x: alt.X, y: alt.Y) -> list[Mark]:
    """A dot at the step's peak with its size."""
    at, total = panel.peak
    rows = [{"at": at, "low": unit.of(total), "text": f"peak {format_bytes(total)}"}]
    is_right = at > len(panel.phases) * 0.7
    place = {"x": x, "y": y}
    dot = mark("point", rows, place, color="var(--ink)", filled=True, size=45, opacity=1, aria=False)
    text: dict[str, Any] = {"align": "right" if is_right else "left", "dx": -6 if is_right else 6, "dy": -9}
    return [dot, *haloed(rows, {**place, "text": "text:N"}, **text)]


def _sources(panels: Sequence[_Panel]) -> str:
    ranks = sorted({panel.rank for panel in panels})
    which = f" Rank {ranks[0]}" if len(ranks) == 1 else " The lowest rank"
    return f"{which}; requested bytes, before the allocator's rounding."


def _table(panels: Sequence[_Panel], unit: Unit) -> Columns:
    """A row for each category of each phase: its largest size, and where it was allocated."""
    rows = [
        {
            "trial": panel.trial.marked_label,
            "phase": title(course),
            "category": category.words,
            f"largest ({unit.name})": unit.show(max(sizes)),
            "main allocation site": course.sites.get(category, ""),
        }
        for panel in panels
        for course in panel.phases
        for category, sizes in course.sizes_bytes.items()
    ]
    return columns_of_named(rows)
