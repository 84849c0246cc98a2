"""What a chart hands to a page: the drawing, the words that say how to read it, and the same figures as a table.

It lies apart from the charts and from the page so that neither knows how the other is made.

Colours are CSS variables, so that one drawing serves light, dark and print. The page declares `--ink` (text), `--muted`
(axis labels), `--grid` (lines) and `--paper` (background); a chart's own variables stand in `report.palette.LIGHT` and
`report.palette.DARK`: mappings from the variable's name (`--category-parameters`) to a colour, with the same names in
both, which the page declares too.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Figure:
    """One chart of the report."""

    key: str
    """Names the figure within its page: lower-case letters, digits and hyphens (it becomes an id and a file's name)."""
    title: str
    caption: str
    """One or two sentences that say how to read it; without a drawing, why there is none."""
    svg: str | None
    """A whole static `<svg>` element, drawn with `var(--...)` and `currentColor`; None where the data allow no chart.
    Values in it are escaped by whoever makes it. A mark's `aria-label` is what hovering it shows."""
    table: pd.DataFrame
    """What the chart shows, its columns named and its cells formatted for people."""
