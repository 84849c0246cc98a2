"""From an altair chart to a static `<svg>` element, drawn by Vega-Lite in this process; nothing is fetched.

What a chart says of a value goes into its data and from there through Vega's own escaping; no specification holds an
expression that is built from a value. Colours are CSS variables (report/words/palette.py), which Vega hands through.
"""

import json
import mmap
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any
from xml.sax.saxutils import quoteattr

import altair as alt
import vl_convert

from zerobench.common.errors import UserError
from zerobench.report.tables.figure import Drawing

Mark = Any
"""One layer of a plot, an altair chart: its methods publish no types."""

Specification = dict[str, Any]
"""A chart as Vega-Lite's JSON."""

WIDTH = 900
"""Width of a drawing, in its own units; a page scales it."""
NARROW = 360
"""Width of a drawing for a telephone, so that its letters keep their size there."""
_BESIDE = 75
"""Width of the figures and the title of an axis beside a plot, and of the last figure of the axis below it."""

_LABEL_LIMIT, _LETTER = 340, 6.6
"""The most that the label of a row takes of a drawing, and about what one of its letters does."""

HATCH = "url(#hatch)"
"""The fill that marks what is predicted; each drawing has its own pattern of that name, told apart by its key."""

_PATTERN = (
    '<defs><pattern id="{}-hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line x1="1" y1="0" x2="1" y2="7" stroke="var(--paper)" stroke-width="1.4" stroke-opacity="0.8"/></pattern></defs>'
)
"""Oblique lines in the colour of what lies behind."""

_RESERVED_BYTES = 65 * 2**30
"""What V8 reserves when it first draws: 64 GiB of addresses within which it keeps its objects, and some beside."""
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)

_SILENT = re.compile(r'<g class="mark-\w+ role-mark[^"]*" aria-hidden="true"')
"""Marks that say nothing lie over marks that do, and must not catch the pointer."""

_GEOMETRY = re.compile(r' (?:d|transform)="[^"<>]*"')
_DIGITS = re.compile(r"(\.\d\d)\d+(?!\d*e)")
"""Places of a hundredth of a pixel are enough; Vega writes all that a float has."""

_FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
_AXIS = {
    "labelColor": "var(--ink)",
    "titleColor": "var(--ink)",
    "domainColor": "var(--muted)",
    "tickColor": "var(--muted)",
    "gridColor": "var(--grid)",
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "titlePadding": 8,
    "labelLimit": _LABEL_LIMIT,
}
_LEGEND = {
    "labelColor": "var(--ink)",
    "titleColor": "var(--muted)",
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "orient": "top",
    "symbolStrokeWidth": 1,
    "labelLimit": 300,
}
_HEADER = {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "labelFontSize": 12, "labelFontWeight": "bold"}
_LEGEND_COLUMNS = {WIDTH: 5, NARROW: 2}
CONFIG: Mapping[str, Any] = {
    "background": "transparent",
    "font": _FONT,
    "padding": 4,
    "axis": _AXIS,
    "legend": _LEGEND,
    "header": _HEADER,
    "title": {"color": "var(--ink)", "fontSize": 13, "fontWeight": "bold", "anchor": "start"},
    "view": {"stroke": None},
    "text": {"color": "var(--ink)", "fontSize": 12, "aria": False},
}


def data(rows: Iterable[Any]) -> alt.InlineData:
    """Rows of plain Python values, mappings or dataclasses, as a chart's data.

    As text, because altair copies and walks what it can look into, once for each layer that is added.
    """
    plain = [row if isinstance(row, dict) else vars(row) for row in rows]
    return alt.InlineData(values=json.dumps(plain, allow_nan=False), format=alt.JsonDataFormat(type="json"))


def is_narrow(width: float) -> bool:
    """True if a drawing of this width has no room for words beside its plots, nor for two plots side by side."""
    return width < 2 * NARROW


def plot_width(names: Iterable[str], beside: float = 24, width: float = WIDTH) -> float:
    """Width that rows of these names leave to a drawing's plot, with so much `beside` it."""
    return width - min(_LABEL_LIMIT, _LETTER * max(map(len, names))) - beside


def in_columns(width: float, num_plots: int) -> tuple[int, float]:
    """Number of plots side by side in a drawing, two at most, and the width of each."""
    columns = 1 if is_narrow(width) else min(2, num_plots)
    return columns, width / columns - _BESIDE


def size_axis(field: str, unit: str, top: float) -> alt.Y:
    """The axis of bytes of a small plot among others, from 0 to `top`: its unit stands above its figures."""
    axis = alt.Axis(tickCount=4, titleAngle=0, titleAlign="right", titleY=-6, titleX=-6)
    return alt.Y(field, title=unit, axis=axis, scale=reach(0, top))


def wrapped(text: str, width: float) -> list[str]:
    """`text` in lines that are no longer than `width`."""
    return textwrap.wrap(text, int(width / _LETTER)) or [""]


def mark(kind: str, rows: Iterable[Any], place: Mapping[str, Any], **style: Any) -> Mark:
    """A layer with a mark of this `kind` for each of `rows`; `place` says by channel what is read from a row."""
    return getattr(alt.Chart(data(rows)), f"mark_{kind}")(**style).encode(**place)


def haloed(rows: Sequence[Any], place: Mapping[str, Any], **text: Any) -> list[Mark]:
    """The text of `rows` at a `place`, first a border in the paper's colour, which keeps it readable on lines."""
    border = {**text, "stroke": "var(--paper)", "strokeWidth": 3}
    return [mark("text", rows, place, **border), mark("text", rows, place, **text)]


def reach(low: float, high: float, **scale: Any) -> alt.Scale:
    """The scale of an axis that begins and ends just there."""
    return alt.Scale(domain=[low, high], nice=False, **scale)


def layered(marks: Sequence[Mark], width: float, height: float, title: str | None = None) -> Specification:
    """`marks` over each other, the first one lowest, as a plot of this size.

    Put together as Vega-Lite's format says and not by altair's `layer`, which copies all of it with every mark.
    """
    drawn = [mark.to_dict(validate=False) for mark in marks]
    datasets = {name: rows for mark in drawn for name, rows in mark.get("datasets", {}).items()}
    layers = [{key: mark[key] for key in ("data", "mark", "encoding")} for mark in drawn]
    name = {} if title is None else {"title": {"text": wrapped(title, width), "fontSize": 12, "offset": 4}}
    return {"layer": layers, "width": width, "height": height, "datasets": datasets, **name}


def arranged(plots: Sequence[Specification], columns: int, spacing: float, **independent: str) -> Specification:
    """`plots` in rows of `columns`; scales are shared but for those that are called `independent`."""
    datasets = {name: rows for plot in plots for name, rows in plot["datasets"].items()}
    bare = [{key: part for key, part in plot.items() if key != "datasets"} for plot in plots]
    resolve = {"resolve": {"scale": independent}} if independent else {}
    return {"concat": bare, "columns": columns, "spacing": spacing, "datasets": datasets, **resolve}


def drawing(plot: Callable[..., Specification], key: str, label: str) -> Drawing:
    """Drawing of `plot` (layered or arranged) as `<svg>` elements that take the width they are given; `label` names it
    as a whole.

    Raises UserError: this process may not draw. Its `draw` raises ValueError: Vega-Lite refuses the specification.
    """
    _check_addresses()
    wide, narrow = (
        {"$schema": alt.SCHEMA_URL, **plot(width=width), "config": _config(width)} for width in (WIDTH, NARROW)
    )
    return Drawing(wide, partial(_svg, wide, key, label), partial(_svg, narrow, key, label))


def _config(width: int) -> dict[str, Any]:
    """CONFIG with legends that find room; one below the other where two do not stand side by side."""
    legend = {**_LEGEND, "columns": _LEGEND_COLUMNS[width]}
    if is_narrow(width):
        legend["layout"] = {"top": {"direction": "vertical", "anchor": "start"}}
    return {**CONFIG, "legend": legend}


def _svg(specification: Specification, key: str, label: str) -> str:
    # Inline data only: no address is allowed, so a value can make nothing load.
    drawn = vl_convert.vegalite_to_svg(specification, allowed_base_urls=[])
    opening, _, body = drawn.partition(">")
    width, height = (_attribute(opening, name) for name in ("width", "height"))
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="100%"'
        f' role="graphics-document" aria-label={quoteattr(label)}>'
    )
    body = _GEOMETRY.sub(lambda match: _DIGITS.sub(r"\1", match[0]), body)
    body = _SILENT.sub(r'\g<0> pointer-events="none"', body)
    hatched = f'fill="{HATCH}"'
    pattern = _PATTERN.format(key) if hatched in body else ""
    return opening + pattern + body.replace(hatched, f'fill="url(#{key}-hatch)"')


def chart_of(drawn: Drawing, replaced: Callable[[str], str]) -> Any:
    """The altair chart that is drawn, `replaced` putting colours where its variables stand.

    Hatching is a pattern of our drawings' own: what is predicted is pale instead.
    """
    text = replaced(json.dumps(drawn.specification)).replace(HATCH, "#ffffff80")
    return alt.Chart.from_dict(json.loads(text))


@cache
def _check_addresses() -> None:
    """V8, which draws, ends the process with a stack trace where it cannot reserve its addresses.

    Raises UserError: they cannot be drawn.
    """
    try:
        mmap.mmap(-1, _RESERVED_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, prot=0).close()
    except (OSError, OverflowError):
        raise UserError(
            f"report: drawing charts needs {_RESERVED_BYTES / 2**30:.0f} GiB of address space (V8): raise "
            "`ulimit -v`, or write --markdown, --csv or --json, which need no charts"
        ) from None


def _attribute(tag: str, name: str) -> str:
    """The number in an attribute of the tag that opens a drawing."""
    match = re.search(rf' {name}="([0-9.]+)"', tag)
    if match is None:
        raise ValueError(f"svg: Vega drew one without a {name}")
    return match[1]
