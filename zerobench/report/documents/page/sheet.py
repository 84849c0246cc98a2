"""Parts of every page: one file with its style and script in it, figures with their tables, and a policy."""

import base64
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from zerobench import __version__
from zerobench.common.units import counted
from zerobench.report.documents.page.drawing import drawing
from zerobench.report.documents.page.environment import utc_text
from zerobench.report.tables.figure import Drawing, Figure
from zerobench.report.tables.grid import Grid, columns_grid
from zerobench.report.words.palette import colours
from zerobench.report.words.visible import visible

ASSETS = Path(__file__).parent / "assets"
_PLACE = "<!--drawing-->"
"""No value can hold it: `<` is escaped in all of them."""


@dataclass(frozen=True)
class PageFigure:
    """A figure as the template takes it; one without a drawing has no number."""

    key: str
    number: int | None
    title: str
    caption: str
    drawing: Drawing | None
    grid: Grid

    @property
    def place(self) -> Markup:
        """The chart's place in the template."""
        return Markup(_PLACE)  # noqa: S704 -- our own text

    @property
    def heading(self) -> str:
        """Beginning of its caption."""
        return f"{self.title}." if self.number is None else f"Figure {self.number}. {self.title}."

    @property
    def rows(self) -> str:
        """Number of rows of its table."""
        return counted(len(self.grid.rows), "row")


def drawn(figures: Iterable[Figure]) -> Iterator[PageFigure]:
    """The figures, those that have a drawing numbered."""
    numbers = count(1)
    for figure in figures:
        number = None if figure.drawing is None else next(numbers)
        title = figure.title.rstrip(".")
        table = columns_grid(f"{title}.", figure.columns)
        yield PageFigure(figure.key, number, title, figure.caption, figure.drawing, table)


def sheet_pieces(template: str, page: Mapping[str, Any]) -> Iterator[str]:
    """The page a piece at a time, its charts drawn as they are asked for: by then only its text is held, and no value
    that it was made of.

    `page` has what `template` writes, as text that it escapes; its `figures` (PageFigure) are shown in that order.
    """
    texts = _text(template, page).split(_PLACE)
    return _insert_drawings(texts, [place for figure in page["figures"] for place in _places(figure)])


def _places(figure: PageFigure) -> Iterator[tuple[Callable[[], str], str, str]]:
    """Its drawings in the template's order: each with its figure's key and what its ids begin with."""
    if figure.drawing is not None:
        yield figure.drawing.draw, figure.key, figure.key
        yield figure.drawing.narrow, figure.key, f"{figure.key}-narrow"


def _text(template: str, page: Mapping[str, Any]) -> str:
    """The page without its charts; written piece by piece, since its pieces together take ten times their text."""
    script, text = _asset("script.js"), StringIO()
    text.writelines(
        _environment()
        .get_template(template)
        .generate(
            page={**page, "written_at": utc_text(time.time())},
            policy=_content_security_policy(script),
            style=Markup(_variables() + _asset("style.css")),  # noqa: S704 -- our own files, no value of a run in them
            script=Markup(script),  # noqa: S704 -- as above
            version=__version__,
        )
    )
    return text.getvalue()


def _insert_drawings(texts: Sequence[str], drawings: Sequence[tuple[Callable[[], str], str, str]]) -> Iterator[str]:
    yield texts[0]
    for (draw, key, ids), text in zip(drawings, texts[1:], strict=True):
        yield drawing(draw(), key, ids)
        yield text


def _variables() -> str:
    """The charts' colours in both themes; the page's own of the same name, which come later, prevail."""
    light, dark = colours("light"), colours("dark")
    return ":root {" + "".join(f" {name}: light-dark({light[name]}, {dark[name]});" for name in light) + " }\n"


def _environment() -> Environment:
    """Each text that a template writes has all of its characters visible, and is escaped."""
    return Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else visible(value),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _content_security_policy(script: str) -> str:
    """The policy (W3C CSP Level 3) of a page whose only script is `script`, to the byte: an unescaped value could
    neither run nor send anything. Styles may stand in the page, since SVG brings some.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())
