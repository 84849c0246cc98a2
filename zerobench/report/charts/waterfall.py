"""From what NVML says is used, down to torch's reserve, what is allocated of it, and the categories.

Each bar begins where the one before it ended, so whatever nobody explains is seen as a bar of its own.
"""

from dataclasses import dataclass
from functools import partial

import altair as alt

from zerobench.common.units import format_bytes
from zerobench.report.charts.render import Specification, drawing, layered, mark, plot_width, reach
from zerobench.report.charts.shown import share, whole
from zerobench.report.charts.stack import parts_of
from zerobench.report.figures.nvml_view import Waterfall, waterfall
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.tables.figure import Columns, Figure
from zerobench.report.words import palette
from zerobench.report.words.column_units import Unit, byte_axis

_KEY = "nvml-to-categories"
_ROW_HEIGHT = 24
_FIGURE = 75
"""Pixels of a size at the end of its bar."""


@dataclass(frozen=True)
class Step:
    """One bar: a level that stands on the axis, or a part that leads from one level to the next."""

    name: str
    num_bytes: int
    colour: str
    """`none` of a level."""
    end: int
    """Bytes from the axis to the bar's upper end."""

    @property
    def start(self) -> int:
        """Bytes from the axis to its other end."""
        return self.end - self.num_bytes

    @property
    def tip(self) -> int:
        """The end that lies farther out."""
        return max(self.start, self.end)


def figure(runs: RunFigures) -> Figure | None:
    """The waterfall of the measured trial with the largest use of a device; None where NVML saw none."""
    used = [
        (size, trial)
        for trial in whole(runs.figures)
        if trial.is_measured
        for rank in trial.ranks
        if (size := rank.nvml_used_peak_bytes) is not None
    ]
    title = "NVML memory breakdown"
    if not used:
        return None
    _, chosen = max(used, key=lambda pair: pair[0])
    breakdown = waterfall(runs.run(chosen.run_id).trial(chosen.trial_id))
    if breakdown is None:
        return None
    steps = steps_of(breakdown)
    unit = byte_axis([breakdown.used_bytes])
    caption = (
        f"{chosen.marked_label}, rank {breakdown.rank}, the measured trial with the fullest device: memory "
        "used by NVML (outlined), reserved by torch, tensors at the peak, tensors by category. "
        f"Unexplained: {format_bytes(breakdown.unexplained_bytes)}."
    )
    return Figure(_KEY, title, caption, drawing(partial(_chart, steps, unit), _KEY, title), _table(steps, unit))


def steps_of(breakdown: Waterfall) -> list[Step]:
    """The bars of a waterfall, from used memory down to the categories."""
    outside = [
        ("other processes", breakdown.other_processes_bytes),
        ("CUDA context", breakdown.context_bytes),
        ("NCCL", breakdown.collectives_bytes),
        ("unexplained", breakdown.unexplained_bytes),
    ]
    reserved = breakdown.allocated_bytes + breakdown.slack_bytes
    steps = [Step("used (NVML)", breakdown.used_bytes, colour="none", end=breakdown.used_bytes)]
    steps += _falling([(n, size, "var(--muted)") for n, size in outside if size], breakdown.used_bytes)
    steps.append(Step("reserved by torch", reserved, colour="none", end=reserved))
    steps += _falling([("allocator slack", breakdown.slack_bytes, "var(--muted)")], reserved)
    steps.append(Step("tensors", breakdown.allocated_bytes, colour="none", end=breakdown.allocated_bytes))
    return steps + _falling(_categories(breakdown), breakdown.allocated_bytes)


def _falling(parts: list[tuple[str, int, str]], start: int) -> list[Step]:
    """Parts that each begin where the one before it ended."""
    steps = []
    for name, size, colour in parts:
        steps.append(Step(name, size, colour=colour, end=start))
        start -= size
    return steps


def _categories(breakdown: Waterfall) -> list[tuple[str, int, str]]:
    """The categories in the order of all charts; those of nothing are left out."""
    parts = parts_of(breakdown.allocated) if breakdown.allocated else []
    return [
        (part.category.replace("_", " "), part.num_bytes, palette.category_colour(part.group))
        for part in parts
        if part.num_bytes
    ]


def _chart(steps: list[Step], unit: Unit, *, width: float) -> Specification:
    names = [step.name for step in steps]
    plot = plot_width(names, width=width)
    used = steps[0].num_bytes
    rows = [
        {
            "name": step.name,
            "start": unit.of(step.start),
            "end": unit.of(step.end),
            "fill": step.colour,
            "text": format_bytes(step.num_bytes),
            "tip": unit.of(step.tip),
            "description": f"{step.name}: {format_bytes(step.num_bytes)}, {share(step.num_bytes, used)} of used memory",
        }
        for step in steps
    ]
    low, high = min(0, *(step.start for step in steps)), max(step.tip for step in steps)
    scale = reach(unit.of(low), unit.of(high) * plot / (plot - _FIGURE))
    x = alt.X("start:Q", title=f"memory per device ({unit.name})", scale=scale)
    y = alt.Y("name:N", title=None, sort=None, scale=alt.Scale(domain=names, paddingInner=0.25))
    fill = alt.Fill("fill:N", scale=None)
    bar = {"x": x, "x2": "end:Q", "y": y, "fill": fill, "description": "description:N"}
    parts = mark("bar", rows, bar, stroke="var(--ink)", strokeWidth=0.8)
    sizes = mark("text", rows, {"x": "tip:Q", "y": y, "text": "text:N"}, align="left", dx=6)
    return layered([parts, sizes], plot, _ROW_HEIGHT * len(names))


def _table(steps: list[Step], unit: Unit) -> Columns:
    return {
        "what": [step.name for step in steps],
        f"bytes ({unit.name})": [unit.show(step.num_bytes) for step in steps],
        "of used": [share(step.num_bytes, steps[0].num_bytes) for step in steps],
    }
