"""Device memory within one step, phase by phase, with the driver's samples over it.

What the ledger says lies in torch: the most within each phase and what is left at its end. NVML's line lies above, by
what torch reserved and does not use and by what lies outside torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import altair as alt

from zerobench.common.units import format_bytes, format_seconds
from zerobench.common.vocabulary import Place, StepKind
from zerobench.records.nvml_samples import read_samples
from zerobench.report.charts import course
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
from zerobench.report.charts.shown import OWN_AXIS, axis_top, doubt_sentence, most_telling, shown_sentence, whole
from zerobench.report.figures.nvml_view import bare_uuid
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.figures.trial_parts import PhaseFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words import palette
from zerobench.report.words.column_units import Unit, byte_axis, time_unit

MOST_TRIALS = 6
_MOST_SAMPLES = 400
"""Samples drawn of one trial: more than a line can show."""
_TICKS_APART = 100
"""About so many pixels between two figures of the axis of time."""
_LETTER = 6
"""About what a letter of a phase's name takes."""
_KEY = "memory-within-a-step"
_ORDER = {"forward": 0, "backward": 1, "step": 2}


@dataclass(frozen=True)
class _Phase:
    """A phase on its panel's axis."""

    name: str
    begin: float
    end: float
    peak_bytes: int
    live_bytes: int


@dataclass(frozen=True)
class Sample:
    """One NVML sample."""

    at: float
    """On its panel's axis."""
    used_bytes: int


@dataclass(frozen=True)
class _Panel:
    """One trial's step."""

    name: str
    phases: Sequence[_Phase]
    samples: Sequence[Sample]
    is_timed: bool
    """True if the axis is seconds; else each phase has the same width."""

    @property
    def largest_bytes(self) -> int:
        """The most that is drawn."""
        peaks = [phase.peak_bytes for phase in self.phases]
        return max(peaks + [sample.used_bytes for sample in self.samples])


def figure(runs: RunFigures) -> Figure | None:
    """The steady step of a few trials that NVML watched, or that kept no course by category; None where none did."""
    trials = [
        trial
        for trial in whole(runs.figures)
        if _steady(trial) and (trial.nvml_peak_bytes is not None or course.kept_by(runs, trial) is None)
    ]
    if not trials:
        return None
    preferred = [trial for trial in trials if trial.is_measured] or trials
    chosen = most_telling(preferred, lambda trial: trial.device_peak_bytes or 0, MOST_TRIALS)
    panels = [_panel(runs, trial) for trial in chosen]
    unit = byte_axis(panel.largest_bytes for panel in panels)
    title = "Device memory within a step"
    caption = _caption(panels, chosen, len(preferred), len(trials) - len(preferred))
    plot = partial(_plot, panels, unit)
    return Figure(_KEY, title, caption, drawing(plot, _KEY, title), _table(panels, unit))


def _plot(panels: Sequence[_Panel], unit: Unit, *, width: float) -> Specification:
    columns, each = in_columns(width, len(panels))
    lowest = panels[-columns:]
    plots = [_panel_plot(panel, unit, panels, each, is_lowest=panel in lowest) for panel in panels]
    return arranged(plots, columns, 14)


def _steady(trial: TrialFigures) -> list[PhaseFigures]:
    """Phases of the steady step on the device, of the rank with the largest peak."""
    phases = [phase for phase in trial.phases if phase.step is StepKind.STEADY and phase.place is Place.DEVICE]
    known = [phase for phase in phases if phase.peak_bytes is not None and phase.live_bytes is not None]
    return sorted(known, key=lambda phase: _ORDER.get(phase.phase, len(_ORDER)))


def _panel(runs: RunFigures, trial: TrialFigures) -> _Panel:
    steady = _steady(trial)
    clock = [(phase.start_s, phase.end_s) for phase in steady if phase.start_s is not None and phase.end_s is not None]
    is_timed = trial.is_measured and len(clock) == len(steady)
    times = clock if is_timed else [(float(place), place + 1.0) for place in range(len(steady))]
    origin = min(begin for begin, _ in times)
    phases = [
        _Phase(phase.phase, begin - origin, end - origin, phase.peak_bytes or 0, phase.live_bytes or 0)
        for phase, (begin, end) in zip(steady, times, strict=True)
    ]
    samples = _samples(runs, trial, steady[0].rank, origin, phases[-1].end) if is_timed else []
    return _Panel(trial.marked_label, phases, samples, is_timed)


def _samples(runs: RunFigures, trial: TrialFigures, rank: int, origin: float, length: float) -> Sequence[Sample]:
    """NVML's samples of the rank's device between the step's begin and its end, seconds from the begin."""
    figures_of_rank = next((figures for figures in trial.ranks if figures.rank == rank), None)
    if figures_of_rank is None or figures_of_rank.device_uuid is None:
        return []
    folder = runs.run(trial.run_id).folder.trial(trial.trial_id)
    path = folder.nvml_samples(figures_of_rank.hostname if figures_of_rank.node is None else figures_of_rank.node)
    if not path.exists():
        return []
    samples = [
        Sample(sample.t_s - origin, sample.used_bytes)
        for sample in read_samples(path)
        if sample.used_bytes is not None
        and origin <= sample.t_s <= origin + length
        and bare_uuid(sample.gpu_uuid) == bare_uuid(figures_of_rank.device_uuid)
    ]
    return thinned(samples, _MOST_SAMPLES)


def thinned(samples: Sequence[Sample], most: int) -> Sequence[Sample]:
    """At most `most` of `samples`: of neighbours the one with the most used, so that no peak is lost."""
    stride = -(-len(samples) // most)
    if stride <= 1:
        return samples
    return [
        max(samples[at : at + stride], key=lambda sample: sample.used_bytes) for at in range(0, len(samples), stride)
    ]


def _panel_plot(panel: _Panel, unit: Unit, panels: Sequence[_Panel], width: float, *, is_lowest: bool) -> Specification:
    top, has_own_axis = axis_top(panel.largest_bytes, [other.largest_bytes for other in panels])
    y = size_axis("size:Q", unit.name, unit.of(top) * 1.2)
    end = panel.phases[-1].end
    title = "seconds since the start of the step" if is_lowest else None
    axis = alt.Axis(title=title, tickCount=round(width / _TICKS_APART)) if panel.is_timed else None
    x = alt.X("begin:Q", axis=axis, scale=reach(0, end))
    layers = [_peaks(panel, unit, x, y), *_live(panel, unit, x, y), *_phase_names(panel, x, width)]
    if panel.samples:
        layers += _nvml(panel, unit, x, y)
    return layered(layers, width, 110, panel.name + (OWN_AXIS if has_own_axis else ""))


def _peaks(panel: _Panel, unit: Unit, x: alt.X, y: alt.Y) -> Mark:
    """A block a phase, as high as the most within it."""
    rows = [
        {
            "begin": phase.begin,
            "end": phase.end,
            "size": unit.of(phase.peak_bytes),
            "description": _description(panel, phase),
        }
        for phase in panel.phases
    ]
    fill = palette.category_colour("buffers")
    place = {"x": x, "x2": "end:Q", "y": y, "y2": alt.datum(0), "description": "description:N"}
    return mark("rect", rows, place, fill=fill, fillOpacity=0.35, stroke="var(--muted)", strokeWidth=0.7)


def _description(panel: _Panel, phase: _Phase) -> str:
    took = f" in {format_seconds(phase.end - phase.begin)}" if panel.is_timed else ""
    peak, live = format_bytes(phase.peak_bytes), format_bytes(phase.live_bytes)
    return f"{panel.name}, {phase.name}{took}: peak {peak}, {live} at the end"


def _live(panel: _Panel, unit: Unit, x: alt.X, y: alt.Y) -> list[Mark]:
    """From each phase's end to the next: what is live between them."""
    first = panel.phases[-1].live_bytes  # a steady step begins with what the one before it left
    rows = [{"begin": 0.0, "size": unit.of(first)}]
    rows += [{"begin": phase.end, "size": unit.of(phase.live_bytes)} for phase in panel.phases]
    colour, place = palette.category_colour("parameters"), {"x": x, "y": y}
    return [
        mark("line", rows, place, color=colour, strokeWidth=2, aria=False),
        mark("point", rows, place, color=colour, filled=True, size=40, opacity=1, aria=False),
    ]


def _phase_names(panel: _Panel, x: alt.X, width: float) -> list[Mark]:
    """Names of the phases that are wide enough for theirs."""
    scale = width / panel.phases[-1].end
    rows = [
        {"begin": (phase.begin + phase.end) / 2, "text": phase.name}
        for phase in panel.phases
        if (phase.end - phase.begin) * scale > _LETTER * len(phase.name)
    ]
    place = {"x": x, "y": alt.value(1), "text": "text:N"}
    return haloed(rows, place, fontSize=11, baseline="top", color="var(--muted)")


def _nvml(panel: _Panel, unit: Unit, x: alt.X, y: alt.Y) -> list[Mark]:
    rows = [
        {
            "begin": sample.at,
            "size": unit.of(sample.used_bytes),
            "description": f"{panel.name}, NVML: {format_bytes(sample.used_bytes)} used",
        }
        for sample in panel.samples
    ]
    place, ink = {"x": x, "y": y}, "var(--ink)"
    return [
        mark("line", rows, place, color=ink, strokeWidth=1.4, strokeDash=[4, 2], aria=False),
        mark("point", rows, {**place, "description": "description:N"}, color=ink, filled=True, size=14, opacity=1),
    ]


def _caption(panels: Sequence[_Panel], chosen: Sequence[TrialFigures], known: int, predicted: int) -> str:
    text = "Block height: the phase's peak in a steady step, largest rank. Line: live memory at the end of each phase."
    if any(panel.samples for panel in panels):
        text += " Dashed, with points: used memory by NVML, including reserved memory and other processes."
    elif any(panel.is_timed for panel in panels):
        text += " No NVML samples."
    if any(panel.is_timed for panel in panels):
        text += " Steps under the memory ledger are slower than timed ones."
    if not all(panel.is_timed for panel in panels):
        text += " Steps without phase times: phases of equal width."
    beside = f" Measured trials only; {predicted:,} predicted." if predicted else ""
    return text + doubt_sentence(chosen) + shown_sentence(len(panels), known) + beside


def _table(panels: Sequence[_Panel], unit: Unit) -> Columns:
    time = time_unit(phase.end - phase.begin for panel in panels if panel.is_timed for phase in panel.phases)
    rows = []
    for panel in panels:
        for phase in panel.phases:
            used = [sample.used_bytes for sample in panel.samples if phase.begin <= sample.at <= phase.end]
            rows.append(
                {
                    "trial": panel.name,
                    "phase": phase.name,
                    f"time ({time.name})": time.show(phase.end - phase.begin if panel.is_timed else None),
                    f"peak ({unit.name})": unit.show(phase.peak_bytes),
                    f"live at the end ({unit.name})": unit.show(phase.live_bytes),
                    f"largest NVML sample ({unit.name})": unit.show(max(used, default=None)),
                }
            )
    return columns_of_named(rows)
