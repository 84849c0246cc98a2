"""What tests read out of a drawn chart."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from zerobench.report.tables.figure import Figure

SVG = "{http://www.w3.org/2000/svg}"


_DRAWN: dict[int, tuple[Figure, ET.Element]] = {}


def root_of(figure: Figure | None) -> ET.Element:
    """The parsed drawing of `figure`, which has one; drawn once, since that takes up to a second."""
    assert figure is not None
    if id(figure) not in _DRAWN:
        svg = figure.svg
        assert svg is not None
        _DRAWN[id(figure)] = figure, ET.fromstring(svg)  # noqa: S314 -- our own drawing
    return _DRAWN[id(figure)][1]


def said(figure: Figure | None) -> list[str]:
    """What the marks of `figure` say to who points at them, axes and legends left out."""
    return [mark.attrib["aria-label"] for mark in _marks(root_of(figure)) if "aria-label" in mark.attrib]


def _marks(root: ET.Element) -> Iterator[ET.Element]:
    for group in root.iter(f"{SVG}g"):
        names = group.attrib.get("class", "").split()
        if "role-mark" in names and "mark-group" not in names:
            yield from group


def texts(figure: Figure | None) -> list[str]:
    """The text that `figure` shows."""
    return [node.text or "" for node in root_of(figure).iter(f"{SVG}text")]


def numbers(text: str) -> list[float]:
    """The numbers in `text`."""
    return [float(found.replace(",", "")) for found in re.findall(r"-?\d[\d,]*\.?\d*", text)]
