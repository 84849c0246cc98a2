"""Cost of offloading: bytes per second to and from NVMe, and the places of offloaded states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt

from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.report.charts.bar_marks import outlines
from zerobench.report.charts.bar_rows import BarRows
from zerobench.report.charts.render import Mark, Specification, arranged, drawing, layered, mark
from zerobench.report.charts.shown import ending, most_telling, part_sentence, whole
from zerobench.report.charts.stack import stacked
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words import palette
from zerobench.report.words.column_units import Unit, byte_axis

_KEY = "offload-traffic"
_SPACING = 30
_COLOURS = {"read": palette.category_colour("parameters"), "written": palette.category_colour("gradients")}
_PLACES = {"host": "var(--category-buffers)", "nvme": "var(--category-logits)"}
_RATE = 10**9
"""Disks are sold and measured in GB/s."""
_OF_PROCESS = {Category.REST_OF_PROCESS, Category.UNATTRIBUTED}
"""On the host, but not there for the offload."""


@dataclass(frozen=True)
class _OffloadedBytes:
    """Bytes that one rank of a trial keeps outside its device."""

    trial: TrialFigures
    sizes: Mapping[Place, int]
    """Bytes in the places where it keeps anything."""

    @property
    def whole(self) -> int:
        return sum(self.sizes.values())


def figure(runs: RunFigures) -> Figure | None:
    """Traffic and offloaded bytes of the trials that offload; None where none uses NVMe (bars.py has the host)."""
    offloading = [_held(trial) for trial in whole(runs.figures) if trial.offloads()]
    if not any(Place.NVME in held_bytes.sizes for held_bytes in offloading):
        return None
    by_trial = {id(held_bytes.trial): held_bytes for held_bytes in offloading}
    trials = most_telling([held_bytes.trial for held_bytes in offloading], lambda trial: by_trial[id(trial)].whole)
    chosen = [by_trial[id(trial)] for trial in trials]
    rates = _rates(trials)
    unit = byte_axis(held_bytes.whole for held_bytes in chosen)
    title = "Offloaded states and NVMe traffic" if rates else "Location of offloaded states"
    chart = partial(_chart, chosen, rates, unit)
    caption = _caption(trials, len(offloading), has_rates=bool(rates))
    return Figure(_KEY, title, caption, drawing(chart, _KEY, title), _table(chosen, unit))


def _held(trial: TrialFigures) -> _OffloadedBytes:
    """On the host at its peak; of NVMe, whose files nobody watches between two phases, at the phases' ends."""
    sizes: dict[Place, int] = {}
    for _, bar in stacked([trial], Place.HOST, _OF_PROCESS):
        sizes[Place.HOST] = bar.whole
    files = [phase for phase in trial.phases if phase.place is Place.NVME and phase.step is StepKind.STEADY]
    if files:
        sizes[Place.NVME] = max(phase.live_bytes or 0 for phase in files)
    return _OffloadedBytes(trial, sizes)


def _rates(trials: Sequence[TrialFigures]) -> list[dict[str, Any]]:
    return [
        {
            "name": trial.marked_label,
            "direction": direction,
            "rate": rate / _RATE,
            "description": f"{trial.marked_label}: {rate / _RATE:.3f} GB/s {direction}",
        }
        for trial in trials
        for direction, rate in _directions(trial)
        if rate is not None
    ]


def _directions(trial: TrialFigures) -> list[tuple[str, float | None]]:
    """Bytes a second each way; a simulated step takes no time of its own."""
    rates = (trial.nvme_read_bytes_per_s, trial.nvme_write_bytes_per_s)
    return [(name, rate if trial.is_measured else None) for name, rate in zip(_COLOURS, rates, strict=True)]


def _chart(
    trials: Sequence[_OffloadedBytes], rates: Sequence[dict[str, Any]], unit: Unit, *, width: float
) -> Specification:
    rows = BarRows.of(width, [held.trial.marked_label for held in trials], beside=30)
    names, marks = rows.lines_above(), _places(trials, unit, rows.y)
    if not rates:
        return layered([*marks, *names], rows.width, rows.height)
    columns = 1 if names else 2
    each = (rows.width - _SPACING * (columns - 1)) / columns
    bare = rows.y
    bare["axis"] = None  # names stand above each plot's bars, or on the left of the first one
    places, traffic = (layered([*layers, *names], each, rows.height) for layers in (marks, [_traffic(rates, bare)]))
    return arranged([places, traffic], columns, _SPACING, fill="independent")


def _places(trials: Sequence[_OffloadedBytes], unit: Unit, y: alt.Y) -> list[Mark]:
    rows, outlined = [], []
    for held in trials:
        name, start = held.trial.marked_label, 0
        for place, size in held.sizes.items():
            description = part_sentence(name, f"on {place.value}", size, held.whole).removesuffix(" of the peak")
            end = start + max(0, size)
            if end > start:
                span = {"start": unit.of(start), "end": unit.of(end)}
                rows.append({"name": name, **span, "place": place.value, "description": description})
            start = end
        outlined.append((name, unit.of(start), held.trial.is_measured))
    x = alt.X("start:Q", title=f"offloaded memory per rank ({unit.name})")
    present = {row["place"] for row in rows}
    fill = _fill("place:N", {place: colour for place, colour in _PLACES.items() if place in present})
    bar = {"x": x, "x2": "end:Q", "y": y, "fill": fill, "description": "description:N"}
    return [mark("bar", rows, bar, stroke="var(--paper)", strokeWidth=0.7), outlines(outlined, y)]


def _fill(field: str, colours: Mapping[str, str]) -> alt.Fill:
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Fill(field, title=None, scale=scale, legend=alt.Legend(symbolType="square"))


def _traffic(rates: Sequence[dict[str, Any]], y: alt.Y) -> Mark:
    offset = alt.YOffset("direction:N", scale=alt.Scale(domain=list(_COLOURS)))
    x, fill = alt.X("rate:Q", title="NVMe, all ranks (GB/s)"), _fill("direction:N", _COLOURS)
    place = {"x": x, "y": y, "yOffset": offset, "fill": fill, "description": "description:N"}
    return mark("bar", rates, place, stroke="var(--ink)", strokeWidth=0.7)


def _caption(trials: Sequence[TrialFigures], known: int, *, has_rates: bool) -> str:
    text = "Per rank, at the steady-step peak: states, pinned and staging buffers in host memory and on NVMe."
    if has_rates:
        text += " Right: NVMe throughput of all ranks, averaged over the whole step."
    return text + ending(trials, len(trials), known)


def _table(trials: Sequence[_OffloadedBytes], unit: Unit) -> Columns:
    rows = [
        {
            "trial": held.trial.marked_label,
            **{f"{place} ({unit.name})": unit.show(held.sizes.get(Place(place))) for place in _PLACES},
            **{
                f"NVMe {direction} (GB/s)": "-" if rate is None else f"{rate / _RATE:.3f}"
                for direction, rate in _directions(held.trial)
            },
        }
        for held in trials
    ]
    return columns_of_named(rows)
