"""The marks of stacked bars: parts, hatching over what is predicted, names, totals, and the line of the capacity."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category
from zerobench.report.charts.bar_rows import BAR_HEIGHT, BarRows
from zerobench.report.charts.render import HATCH, Mark, Specification, haloed, is_narrow, layered, mark, reach
from zerobench.report.charts.shown import part_sentence
from zerobench.report.charts.stack import Bar, Part
from zerobench.report.explain.held_parts import held_part
from zerobench.report.words import palette
from zerobench.report.words.column_units import Unit

_THINNEST = 0.2
"""Pixels of a part that is drawn."""
_BEYOND = 2.0
"""A bar that is this many times as long as all that is to be seen beside it is cut off."""
_APART = 0.2
"""Share of the axis: capacities closer than this share one label."""
_NAME_WIDTH = 7.0
"""About what a letter of a name within a bar, or of a figure beside it, takes."""
_GAP = 6
"""Pixels between the end of a bar, or the line of the capacity, and a figure."""


def chart(
    bars: Sequence[Bar], failed: Sequence[str], unit: Unit, axis: str, capacity: Sequence[int], *, width: float
) -> Specification:
    """The plot: a bar for each trial, made of its parts, and a row of words for each that `failed`.

    `capacity` is empty where no line is to be drawn; `axis` is the words of the axis of bytes.
    """
    names = [*(bar.name for bar in bars), *failed]
    figures = [*(_total(bar, unit) for bar in bars), *("" for _ in failed)]
    layout, narrow = BarRows.of(width, names, figures), is_narrow(width)
    widest = unit.of(max([bar.reach for bar in bars] + list(capacity))) * layout.room(1.2)
    x = alt.X("start:Q", title=axis, scale=reach(0, widest))
    y = layout.y
    scale = layout.width / widest
    layers = [
        _segments(bars, unit, x, y, scale, group_names(width)),
        _tails(bars, unit, y),
        outlines(((bar.name, unit.of(bar.drawn), bar.is_measured) for bar in bars), y),
        *_names(bars, unit, y, scale),
        *([] if narrow else _totals(bars, unit, y, scale, capacity)),
        _breaks(bars, unit, y),
    ]
    if failed:
        words = [{"name": name, "text": "out of device memory"} for name in failed]
        place = {"x": alt.datum(0), "y": y, "text": "text:N"}
        layers.append(mark("text", words, place, align="left", dx=_GAP, color="var(--limit)"))
    if capacity:
        layers += _capacity(bars, capacity, unit, y, scale, narrow=narrow)
    return layered([*layers, *layout.lines_above()], layout.width, layout.height)


def cut(bars: Sequence[Bar], capacity: int) -> list[Bar]:
    """The bars, the longest cut off a little behind the others and the capacity where it would make slivers of them."""
    if len(bars) < 3:
        return list(bars)
    *_, second, longest = sorted(bar.reach for bar in bars)
    limit = round(max(1.3 * second, 1.1 * capacity))
    return [replace(bar, limit=limit) for bar in bars] if longest > _BEYOND * limit else list(bars)


def _breaks(bars: Sequence[Bar], unit: Unit, y: alt.Y) -> Mark:
    """Two strokes through a bar that is cut off."""
    rows = [{"name": bar.name, "at": unit.of(0.97 * bar.reach), "text": "//"} for bar in bars if bar.is_cut]
    place = {"x": "at:Q", "y": y, "text": "text:N"}
    return mark("text", rows, place, fontSize=22, fontWeight="bold", color="var(--paper)")


def _segments(bars: Sequence[Bar], unit: Unit, x: alt.X, y: alt.Y, scale: float, names: Mapping[str, str]) -> Mark:
    """The parts that are wide enough to be seen; `scale` is pixels for one of `unit`."""
    drawn = [
        (bar, part, start, end)
        for bar in bars
        for part in bar.parts
        for start, end in [bar.span(part)]
        if (end - start) * scale / unit.size >= _THINNEST
    ]
    rows = [
        {
            "name": bar.name,
            "start": unit.of(start),
            "end": unit.of(end),
            "group": names[part.group],
            "description": _description(bar, part),
        }
        for bar, part, start, end in drawn
    ]
    groups = {part.group for _, part, _, _ in drawn}
    present = [group for group in palette.CATEGORY_COLOURS if group in groups]
    colour = group_colour(present, names)
    place = {"x": x, "x2": "end:Q", "y": y, "color": colour, "description": "description:N"}
    return mark("bar", rows, place, stroke="var(--paper)", strokeWidth=0.7)


def group_names(width: float) -> Mapping[str, str]:
    """Names of the groups of categories, in the legend of a drawing of this width."""
    return palette.NARROW_NAMES if is_narrow(width) else palette.CATEGORY_NAMES


def group_colour(groups: Sequence[str], names: Mapping[str, str] = palette.CATEGORY_NAMES) -> alt.Color:
    """The colours of groups of categories, which rows name in `group`."""
    return alt.Color(
        "group:N",
        title=None,
        scale=alt.Scale(domain=[names[group] for group in groups], range=list(map(palette.category_colour, groups))),
        legend=alt.Legend(symbolType="square", offset=24),
    )


def _description(bar: Bar, part: Part) -> str:
    """Return `zero2, activations: 1.20 GiB, 12% of the peak; most: 1.10 GiB in 6 tensors held by autograd: ...`."""
    name, group = part.category.replace("_", " "), palette.CATEGORY_NAMES[part.group]
    name = {"rest of process": group}.get(name, name)
    within = "" if name == group else f" ({group})"
    sentence = part_sentence(bar.name, name + within, part.num_bytes, bar.whole)
    largest = bar.instant.largest_part(Category(part.category))
    return sentence if largest is None else f"{sentence}; most: {held_part(largest)}"


def outlines(bars: Iterable[tuple[str, float, bool]], y: alt.Y) -> Mark:
    """An outline for every bar (its name, its end, whether it was measured), so that pale colours end somewhere; with
    hatching over those of predictions.
    """
    rows = [
        {"name": name, "start": 0, "end": end, "fill": "none" if is_measured else HATCH}
        for name, end, is_measured in bars
    ]
    place = {"x": "start:Q", "x2": "end:Q", "y": y, "fill": alt.Fill("fill:N", scale=None)}
    return mark("bar", rows, place, stroke="var(--ink)", strokeWidth=0.8, aria=False)


def _names(bars: Sequence[Bar], unit: Unit, y: alt.Y, scale: float) -> list[Mark]:
    """The names of those groups whose parts are wide enough on the bar to hold them."""
    spans = [(bar, group, *_span(bar, group)) for bar in bars for group in dict.fromkeys(p.group for p in bar.parts)]
    rows = [
        {
            "name": bar.name,
            "at": unit.of((start + end) / 2),
            "text": text,
            "ink": palette.on(palette.category_colour(group)),
            "paper": palette.category_colour(group),
        }
        for bar, group, start, end in spans
        if len(text := palette.SHORT_NAMES[group]) * _NAME_WIDTH < unit.of(end - start) * scale
    ]
    place = {"x": "at:Q", "y": y, "text": "text:N"}
    # A border in the part's own colour keeps the name readable on hatching.
    halo = mark("text", rows, {**place, "stroke": alt.Stroke("paper:N", scale=None)}, fontSize=11, strokeWidth=4)
    return [halo, mark("text", rows, {**place, "color": alt.Color("ink:N", scale=None)}, fontSize=11)]


def _span(bar: Bar, group: str) -> tuple[int, int]:
    """From where to where the parts of a group lie."""
    parts = [part for part in bar.parts if part.group == group]
    return bar.span(parts[0])[0], bar.span(parts[-1])[1]


def _tails(bars: Sequence[Bar], unit: Unit, y: alt.Y) -> Mark:
    """Beyond the peak by category, pale: what else a device has to hold."""
    rows = [
        {
            "name": bar.name,
            "start": unit.of(bar.drawn),
            "end": unit.of(bar.reach),
            "description": f"{bar.name}, start-up, allocator slack, CUDA context, NCCL: {format_bytes(tail)}",
        }
        for bar in bars
        if (tail := bar.reach - bar.drawn) > 0
    ]
    place = {"x": "start:Q", "x2": "end:Q", "y": y, "description": "description:N"}
    return mark("bar", rows, place, fill="var(--grid)", stroke="var(--muted)", strokeWidth=0.7)


def _totals(bars: Sequence[Bar], unit: Unit, y: alt.Y, scale: float, capacity: Sequence[int]) -> list[Mark]:
    """At the end of each bar its peak, and what is needed where that is more, in the unit of the axis."""
    rows = []
    for bar in bars:
        text, end = _total(bar, unit), unit.of(bar.reach)
        # Where the line of the capacity runs: one for all rows, or each row's own; a figure lies behind it, not across.
        size = capacity[0] if len(capacity) == 1 else bar.capacity_bytes if capacity else None
        limit = end if size is None else unit.of(size)
        is_across = end < limit < end + (_GAP + len(text) * _NAME_WIDTH) / scale
        rows.append({"name": bar.name, "at": limit if is_across else end, "text": text})
    place = {"x": "at:Q", "y": y, "text": "text:N"}
    return haloed(rows, place, align="left", dx=_GAP)


def _total(bar: Bar, unit: Unit) -> str:
    needed = f", needs {unit.label(bar.needed)}" if bar.needed > bar.parts[-1].end else ""
    return f"{unit.label(bar.whole)}{needed} {unit.name}"


def _capacity(
    bars: Sequence[Bar], capacity: Sequence[int], unit: Unit, y: alt.Y, scale: float, *, narrow: bool
) -> list[Mark]:
    """Capacity of a device: one line where all rows have the same, else, and between lines of text, one for each row;
    its figure once.
    """
    known = [(bar.name, size) for bar in bars if (size := bar.capacity_bytes) is not None]
    texts: list[dict[str, Any]] = [
        {"at": unit.of(size), "text": f"capacity {format_bytes(size, 0)}", "description": _holds(size)}
        for size in capacity
    ]
    widest = max([bar.reach for bar in bars] + list(capacity))
    apart = [row for at, row in enumerate(texts) if not at or capacity[at] - capacity[at - 1] > _APART * widest]
    has_room = not narrow or all(len(row["text"]) * _NAME_WIDTH < row["at"] * scale for row in apart)
    red, style = {"color": "var(--limit)"}, {"dy": -8, "align": "right" if has_room else "left", "baseline": "bottom"}
    labels = mark("text", apart, {"x": "at:Q", "y": alt.value(0), "text": "text:N"}, **red, **style)
    place = {"x": "at:Q", "description": "description:N"}
    if len(capacity) == 1 and not narrow:
        return [mark("rule", texts, place, strokeWidth=2, **red), labels]
    rows = [{"name": name, "at": unit.of(size), "description": _holds(size)} for name, size in known]
    height = BAR_HEIGHT if narrow else 26
    return [mark("tick", rows, {**place, "y": y}, orient="vertical", size=height, thickness=2, **red), labels]


def _holds(size: int) -> str:
    return f"device capacity: {format_bytes(size)}"
