"""Rows of bars: a bar's name and figure beside it, or in lines above it where the drawing is narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from zerobench.report.charts.render import Mark, haloed, is_narrow, plot_width

BAR_HEIGHT = 18.72
_LETTER = 6.5
"""About what a letter of a line above a bar takes."""
_LINE = 15
"""Height of a line of text, in pixels."""


@dataclass(frozen=True)
class BarRows:
    """Positions of bars, their names and figures."""

    names: Sequence[str]
    figures: Sequence[str]
    width: float
    """Width of the plot."""
    num_lines: int = 0
    """Above each bar: its name, and its figure in the same line or in one of its own."""

    @classmethod
    def of(cls, width: float, names: Sequence[str], figures: Sequence[str] = (), beside: float = 24) -> BarRows:
        """In a drawing of this `width`; `beside` is what else stands beside a wide one's plot."""
        figures = figures or [""] * len(names)
        if not is_narrow(width):
            return cls(names, figures, plot_width(names, beside, width))
        longest = max(len(f"{name} {figure}") for name, figure in zip(names, figures, strict=True))
        return cls(names, figures, width - 12, 1 if longest * _LETTER <= width - 12 else 2)

    def room(self, beside: float) -> float:
        """Share by which the axis exceeds the longest bar, `beside` where its figure is drawn at its end."""
        return 1.03 if self.num_lines else beside

    @property
    def row_height(self) -> float:
        return 26 + (_LINE + 3) * (self.num_lines > 0) + _LINE * (self.num_lines > 1)

    @property
    def height(self) -> float:
        """Height of all rows."""
        return self.row_height * len(self.names)

    @property
    def y(self) -> alt.Y:
        """The places of the bars; lines of text stand over the first one, too."""
        bands = alt.Scale(domain=list(self.names), paddingInner=1 - BAR_HEIGHT / self.row_height)
        if not self.num_lines:
            return alt.Y("name:N", title=None, sort=None, scale=bands)
        bands["align"] = 1
        return alt.Y("name:N", sort=None, scale=bands, axis=None)

    def lines_above(self) -> list[Mark]:
        """Each row's name over its bar, its figure at the right end; nothing where they stand beside it."""
        if not self.num_lines:
            return []
        texts = [{"name": name, "text": figure} for name, figure in zip(self.names, self.figures, strict=True)]
        name = {"x": alt.value(0), "y": self.y, "text": "name:N"}
        figure = {"x": alt.value(self.width), "y": self.y, "text": "text:N"}
        return [
            *haloed(texts, name, align="left", dy=self._line(self.num_lines - 1), limit=self.width),
            *haloed(texts, figure, align="right", dy=self._line(0), color="var(--muted)"),
        ]

    def _line(self, at: int) -> float:
        """Distance of the middle of a line of text, the lowest being 0, from its bar's."""
        return -(BAR_HEIGHT / 2 + 9 + _LINE * at)
