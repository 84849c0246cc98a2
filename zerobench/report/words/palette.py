"""Colours of the charts, as CSS variables that the page declares once: light, dark and print need no second drawing.

The hues are those of Okabe and Ito (2008, "Color Universal Design"), which readers without red or green cones tell
apart, with two greys more. A category has its colour in every chart, whatever else is in it; so has a strategy. A
test computes the distances as colour-blind eyes see them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from zerobench.records.instants import GROUPS


@dataclass(frozen=True)
class Colour:
    """One colour in two themes, as `#rrggbb`."""

    light: str
    dark: str

    @classmethod
    def same(cls, value: str) -> Colour:
        """The same in both."""
        return cls(value, value)


CATEGORY_COLOURS: Mapping[str, Colour] = {
    "parameters": Colour("#0072B2", "#1580C4"),
    "gradients": Colour.same("#E69F00"),
    "optimizer": Colour.same("#009E73"),
    "buffers": Colour.same("#56B4E9"),
    "activations": Colour.same("#D55E00"),
    "logits": Colour.same("#CC79A7"),
    "temporaries": Colour.same("#F0E442"),
    "small": Colour("#C8C8C8", "#BDBDBD"),
    "process": Colour("#4f4f4f", "#5f656c"),
    "unattributed": Colour("#000000", "#FFFFFF"),
}
"""Colours by group of categories (zerobench.records.instants.GROUPS), in the order in which they are stacked."""

SHORT_NAMES: Mapping[str, str] = {group: group for group in CATEGORY_COLOURS}
"""Names that fit on a bar."""

CATEGORY_NAMES: Mapping[str, str] = {
    **SHORT_NAMES,
    "optimizer": "optimizer states",
    "buffers": "communication and staging buffers",
    "logits": "logits and loss",
    "small": "inputs, workspaces, rounding",
    "process": "other process memory",
}
"""Names for people, by group."""

NARROW_NAMES: Mapping[str, str] = {**CATEGORY_NAMES, "buffers": "buffers"}
"""Names that fit twice beside each other on a telephone."""

STRATEGY_COLOURS: Mapping[str, Colour] = {
    "single": Colour("#4f4f4f", "#b4b8bd"),
    "ddp": Colour.same("#F0E442"),
    "zero0": Colour.same("#D55E00"),
    "zero1": Colour.same("#E69F00"),
    "zero2": Colour.same("#009E73"),
    "zero3": Colour("#0072B2", "#1580C4"),
    "fsdp": Colour.same("#56B4E9"),
}
OTHER_STRATEGY = "zero-other"
_OTHER = Colour("#CC79A7", "#CC79A7")

PLAIN_COLOURS: Mapping[str, Colour] = {
    "ink": Colour("#1b1f24", "#e6e8eb"),
    "muted": Colour("#59636e", "#9aa4af"),
    "grid": Colour("#d8dde3", "#343a42"),
    "paper": Colour("#ffffff", "#15181c"),
    "limit": Colour("#b3261e", "#ff8a80"),
}
"""Text and axes, lesser text, grid lines, what lies behind, and limits."""

GROUP_OF = {category.value: group for group, categories in GROUPS.items() for category in categories}
"""From a category to its group."""


def category_colour(group: str) -> str:
    """The CSS colour of a group of categories."""
    return f"var(--category-{group})"


def strategy_colour(strategy: str) -> str:
    """The CSS colour of a strategy; those that the suite does not ship with share one."""
    return f"var(--strategy-{strategy if strategy in STRATEGY_COLOURS else OTHER_STRATEGY})"


def on(colour: str) -> str:
    """The CSS colour of text that stands on the colour of a category or a strategy."""
    return colour.replace("--", "--on-", 1)


def colours(theme: str) -> dict[str, str]:
    """Every CSS variable that charts use, with its value in `theme` (`light` or `dark`).

    A page may have its own `--ink`, `--muted`, `--grid` and `--paper`: charts then have its text's colours.
    """
    values = {f"--{name}": getattr(colour, theme) for name, colour in PLAIN_COLOURS.items()}
    strategies = {**STRATEGY_COLOURS, OTHER_STRATEGY: _OTHER}
    for kind, members in (("category", CATEGORY_COLOURS), ("strategy", strategies)):
        for name, colour in members.items():
            value = getattr(colour, theme)
            values |= {f"--{kind}-{name}": value, f"--on-{kind}-{name}": readable_on(value)}
    return values


def resolved(svg: str, theme: str = "light") -> str:
    """`svg` with the values of `theme` in the place of its variables, for readers that know no CSS (PNG, Markdown)."""
    known = colours(theme)
    return re.sub(r"var\((--[a-z0-9-]+)\)", lambda match: known.get(match[1], match[0]), svg)


def readable_on(background: str) -> str:
    """Black or white, whichever contrasts more with `background`."""
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, background))


def contrast(colour: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2, "contrast ratio")."""
    low, high = sorted((_luminance(colour), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(value: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2.2)."""
    channels = (int(value[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
