"""A chart for a page: the drawing, the words that say how to read it, and the same figures as a table.

It lies apart from the charts and from the page so that neither knows how the other is made.

Colours are CSS variables, so that one drawing serves light, dark and print. The page declares `--ink` (text), `--muted`
(axis labels), `--grid` (lines) and `--paper` (background); a chart's own variables stand in `report.palette.LIGHT` and
`report.palette.DARK`: mappings from the variable's name (`--category-parameters`) to a colour, with the same names in
both, which the page declares too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, Sequence[str]]
"""A table of texts, by the names of its columns."""


def columns_of_named(rows: Sequence[Mapping[str, str]]) -> Columns:
    """The table of rows that each name their cells alike."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


@dataclass(frozen=True)
class Drawing:
    """Drawing of a chart. It waits until the page is written: V8 takes as much memory as the figures of ten thousand
    trials, which nobody needs any more by then.
    """

    specification: Mapping[str, Any]
    """The chart in Vega-Lite, with variables for colours."""
    draw: Callable[[], str]
    """Gives the `<svg>` element, drawn anew each time."""
    narrow: Callable[[], str]
    """The same laid out for a telephone: an SVG that shrinks makes its letters too small to read."""


@dataclass(frozen=True)
class Figure:
    """One chart of the report."""

    key: str
    """Names the figure within its page: lower-case letters, digits and hyphens (it becomes an id and a file's name)."""
    title: str
    caption: str
    """One or two sentences that say how to read it; without a drawing, why there is none."""
    drawing: Drawing | None
    """Of a whole static `<svg>` element with `var(--...)` and `currentColor`; None where the data allow no chart.
    Values in it are escaped by whoever makes it. A mark's `aria-label` is what hovering it shows."""
    columns: Columns
    """Figures of the chart, its columns named and its cells formatted for people."""

    @property
    def svg(self) -> str | None:
        """The chart, drawn now; None without a drawing."""
        return None if self.drawing is None else self.drawing.draw()

    @property
    def table(self) -> pd.DataFrame:
        """The same as a frame."""
        import pandas as pd  # noqa: PLC0415 -- a page asks for none, and is 80 MiB smaller without

        return pd.DataFrame(self.columns)
