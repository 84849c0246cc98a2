"""A chart's SVG as it goes into the page: only what draws, its ids its own, named by its figure.

The values in it were escaped by whoever drew it. All the same, nothing but shapes and text passes: the page's promise
does not rest on a drawing library. Screen readers are told the figure's title and caption and find its figures in the
table below; a thousand marks read out one by one help nobody.
"""

import re
from xml.etree import ElementTree as ET

SVG = "http://www.w3.org/2000/svg"
DRAWS = frozenset(
    {"svg", "g", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon"}
    | {"text", "tspan", "title", "desc"}
    | {"defs", "clipPath", "pattern", "linearGradient", "radialGradient", "stop", "marker", "mask"}
)
"""Elements that draw or name; others (scripts, foreign markup, links, animations) are left out with all they hold."""
_LOCAL = re.compile(r"url\(\s*[\"']?#([^\"')\s]+)[\"']?\s*\)")
_REFERENCE = re.compile(r"url\(|@import|javascript:|expression\(", re.IGNORECASE)

ET.register_namespace("", SVG)


def drawing(svg: str, key: str, ids: str | None = None) -> str:
    """`svg` for the figure whose id is `key`, safe to be written into the page as it stands; its own ids begin with
    `ids`, which is `key` unless a figure has several drawings.

    Raises ValueError: it is no well-formed SVG, or declares entities.
    """
    if re.search("<!(DOCTYPE|ENTITY)", svg, re.IGNORECASE):
        raise ValueError(f"{key}: an SVG with a document type is not taken")
    try:
        root = ET.fromstring(svg)  # noqa: S314 -- drawn by our own process, and without a document type: see above
    except ET.ParseError as error:
        raise ValueError(f"{key}: not well-formed SVG: {error}") from None
    if root.tag != f"{{{SVG}}}svg":
        raise ValueError(f"{key}: not an SVG: its first element is {root.tag}")
    _clean(root, ids or key)
    _name(root, key)
    return ET.tostring(root, encoding="unicode")


def _clean(element: ET.Element, key: str) -> None:
    """Leave out what does not draw, and give the ids of this drawing a space of their own."""
    for child in list(element):
        if isinstance(child.tag, str) and child.tag.removeprefix(f"{{{SVG}}}") in DRAWS:
            _clean(child, key)
        else:
            element.remove(child)
    for name, value in list(element.attrib.items()):
        kept = _attribute(name, value, key)
        if kept is None:
            del element.attrib[name]
        else:
            element.set(name, kept)


def _attribute(name: str, value: str, key: str) -> str | None:
    """The value that an attribute may have here; None where it may not be."""
    local = name.rpartition("}")[2].lower()
    if local.startswith("on") or local in {"href", "src", "tabindex"}:
        return None
    if local == "id":
        return _own(value, key)
    if local.startswith("aria-"):  # words, whatever is in them
        return value
    if _REFERENCE.search(_LOCAL.sub("", value)):
        return None
    return _LOCAL.sub(lambda match: f"url(#{_own(match[1], key)})", value)


def _own(name: str, key: str) -> str:
    """An id that no other drawing of the page has."""
    return name if name.startswith(f"{key}-") else f"{key}-{name}"


def _name(root: ET.Element, key: str) -> None:
    """The figure's title and caption are the drawing's; its size is its frame's."""
    for name in ("width", "height", "aria-label", "style"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{key}-title")
    root.set("aria-describedby", f"{key}-caption")
