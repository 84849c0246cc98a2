"""The expected step of simulated trials as it is replayed: what runs on which lane, exposed communication marked."""

from collections.abc import Sequence
from functools import partial

import altair as alt

from zerobench.common.units import format_seconds
from zerobench.config.derived.batch import limit_micro_batches
from zerobench.estimate.clock.replay import Timeline
from zerobench.estimate.time.predicted_speed import predicted_timeline
from zerobench.report.charts.render import Specification, arranged, drawing, layered, mark, plot_width, reach
from zerobench.report.charts.shown import most_telling, shown_sentence, whole
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words import palette
from zerobench.report.words.column_units import time_unit

KEY = "streams-over-the-step"
MOST_TRIALS = 4
_ROW = 20
_THINNEST = 1 / 800
"""Of the step: gaps that no drawing could show."""
_COLOURS = {
    "compute": palette.category_colour("parameters"),
    "communication": palette.category_colour("buffers"),
    "exposed": "var(--limit)",
}
_OTHER = palette.category_colour("gradients")


_Panel = tuple[TrialFigures, Timeline]
"""One trial's step."""


def figure(runs: RunFigures) -> Figure | None:
    """The steps of a few trials; None where none has a trace."""
    known = [trial for trial in whole(runs.figures) if trial.expected is not None]
    chosen = most_telling(known, lambda trial: trial.device_peak_bytes or 0, MOST_TRIALS)
    steps = ((trial, predicted_timeline(runs.run(trial.run_id).trial(trial.trial_id))) for trial in chosen)
    panels = [(trial, step) for trial, step in steps if step is not None]
    if not panels:
        return None
    title = "Streams over the expected step"
    caption = (
        "The engine's issue order, replayed at the rates of the GPU and its links. exposed:"
        " collectives not overlapped with kernels. Excludes data loading and logging."
        + shown_sentence(len(panels), len(known))
    )
    return Figure(KEY, title, caption, drawing(partial(_chart, panels), KEY, title), _table(panels))


def _chart(panels: Sequence[_Panel], *, width: float) -> Specification:
    return arranged([_drawn(*panel, width) for panel in panels], 1, 14, y="independent", x="independent")


def _drawn(trial: TrialFigures, step: Timeline, width: float) -> Specification:
    lanes = step.lanes(step.step_s * _THINNEST)
    unit = time_unit([step.step_s])
    rows = [
        {
            "lane": lane,
            "begin": begin / unit.size,
            "end": end / unit.size,
            "colour": _COLOURS.get(lane, _OTHER),
            "description": f"{trial.marked_label}, {lane}: {format_seconds(begin)} to {format_seconds(end)}",
        }
        for lane, spans in lanes.items()
        for begin, end in spans
    ]
    x = alt.X("begin:Q", title=unit.name, scale=reach(0, step.step_s / unit.size))
    y = alt.Y("lane:N", title=None, sort=list(lanes), axis=alt.Axis(ticks=False, domain=False))
    colour = alt.Color("colour:N", scale=None)
    place = {"x": x, "x2": "end:Q", "y": y, "color": colour, "description": "description:N"}
    spec, title = trial.spec, trial.marked_label
    # A prediction plays some micro-batches of an accumulated step; the rest are like them.
    played, asked = limit_micro_batches(spec).gradient_accumulation_steps, spec.gradient_accumulation_steps
    title += "" if played == asked else f" ({played} of {asked} micro-batches)"
    bars = mark("bar", rows, place, height=_ROW - 6)
    return layered([bars], plot_width(lanes, 40, width), _ROW * len(lanes), title)


def _table(panels: Sequence[_Panel]) -> Columns:
    unit = time_unit(step.step_s for _, step in panels)
    rows = []
    for trial, step in panels:
        seconds = {lane: sum(end - begin for begin, end in spans) for lane, spans in step.lanes().items()}
        seconds = {**step.classes, **seconds}
        for name, value in [("whole step", step.step_s), *seconds.items()]:
            share = f"{value / step.step_s:.1%}"
            rows.append({"trial": trial.marked_label, "what": name, unit.name: unit.show(value), "share": share})
    return columns_of_named(rows)
