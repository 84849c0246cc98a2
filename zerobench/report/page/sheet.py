"""What every page is made of: one file with its style and script in it, figures with their tables, and a policy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from zerobench import __version__
from zerobench.report.figure import Figure
from zerobench.report.page.drawing import drawing
from zerobench.report.page.environment import utc_text
from zerobench.report.page.policy import content_security_policy
from zerobench.report.palette import colours
from zerobench.report.render.grid import Grid, columns_grid
from zerobench.report.render.visible import visible
from zerobench.units import counted

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Drawn:
    """A figure as the template takes it; one without a drawing has no number."""

    key: str
    number: int | None
    title: str
    caption: str
    drawing: Markup | None
    grid: Grid

    @property
    def heading(self) -> str:
        """What its caption begins with."""
        return f"{self.title}." if self.number is None else f"Figure {self.number}. {self.title}."

    @property
    def rows(self) -> str:
        """How long its table is."""
        return counted(len(self.grid.rows), "row")


@dataclass(frozen=True)
class Entry:
    """A line of the contents."""

    key: str
    number: str
    title: str


def drawn(figures: Iterable[Figure]) -> Iterator[Drawn]:
    """The figures, those that have a drawing numbered."""
    numbers = count(1)
    for figure in figures:
        number = None if figure.svg is None else next(numbers)
        svg = None if figure.svg is None else Markup(drawing(figure.svg, figure.key))  # noqa: S704 -- drawing() checks
        title, caption = visible(figure.title.rstrip(".")), visible(figure.caption)
        yield Drawn(figure.key, number, title, caption, svg, columns_grid(f"{title}.", figure.columns))


def sheet_pieces(template: str, page: Mapping[str, Any]) -> Iterable[str]:
    """The page a piece at a time, since all of its pieces together take ten times its text.

    `page` has what `template` writes, as text that it escapes.
    """
    script = _asset("script.js")
    pieces: Iterable[str] = (
        _environment()
        .get_template(template)
        .generate(
            page={**page, "written_at": utc_text(time.time())},
            policy=content_security_policy(script),
            style=Markup(_variables() + _asset("style.css")),  # noqa: S704 -- our own files, no value of a run in them
            script=Markup(script),  # noqa: S704 -- as above
            version=__version__,
        )
    )
    return pieces


def _variables() -> str:
    """The charts' colours in both themes; the page's own of the same name, which come later, prevail."""
    light, dark = colours("light"), colours("dark")
    return ":root {" + "".join(f" {name}: light-dark({light[name]}, {dark[name]});" for name in light) + " }\n"


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
