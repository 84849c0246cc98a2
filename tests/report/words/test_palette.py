"""The charts' colours."""

from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import pytest
from colorspacious import cspace_convert  # type: ignore[import-untyped]  # it publishes none

from zerobench.common.vocabulary import Category
from zerobench.records.instants import GROUPS
from zerobench.report.words import palette

THEMES = ("light", "dark")
EYES = (None, "protanomaly", "deuteranomaly", "tritanomaly")
MEANINGS = {"category": palette.CATEGORY_COLOURS, "strategy": palette.STRATEGY_COLOURS}


def lab(colour: str, eyes: str | None) -> npt.NDArray[np.float64]:
    """CIELAB of a colour as such eyes see it (Machado, Oliveira and Fernandes 2009, complete dichromacy)."""
    rgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    if eyes is not None:
        deficient = {"name": "sRGB1+CVD", "cvd_type": eyes, "severity": 100}
        rgb = np.clip(cspace_convert(rgb, deficient, "sRGB1"), 0, 1)
    return np.asarray(cspace_convert(rgb, "sRGB1", "CIELab"), dtype=np.float64)


def distance(one: str, other: str, eyes: str | None) -> float:
    """CIE76."""
    return float(np.linalg.norm(lab(one, eyes) - lab(other, eyes)))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("meaning", MEANINGS)
def test_no_two_colours_of_a_kind_look_alike_to_colour_blind_eyes(theme: str, eyes: str | None, meaning: str) -> None:
    values = [getattr(colour, theme) for colour in MEANINGS[meaning].values()]
    assert min(distance(one, other, eyes) for one, other in combinations(values, 2)) > 12


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eyes", EYES)
def test_categories_that_are_stacked_beside_each_other_differ_more(theme: str, eyes: str | None) -> None:
    values = [getattr(colour, theme) for colour in palette.CATEGORY_COLOURS.values()]
    assert min(distance(one, other, eyes) for one, other in pairwise(values)) > 15


def test_the_measure_of_distance_knows_red_from_green_only_by_eyes_that_do() -> None:
    red, green = "#c05050", "#7a7a30"
    assert distance(red, green, None) > 1.8 * distance(red, green, "protanomaly")


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read_on_what_it_stands_on(theme: str) -> None:
    known = palette.colours(theme)
    for name, ink in known.items():
        if name.startswith("--on-"):
            assert palette.contrast(ink, known[name.replace("--on-", "--")]) >= 4.5, name
    for name in ("--ink", "--muted", "--limit"):
        assert palette.contrast(known[name], known["--paper"]) >= 4.5, name


def test_contrast_is_that_of_the_web_guidelines() -> None:
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_every_category_of_the_ledger_has_a_colour_and_a_name() -> None:
    assert set(palette.GROUP_OF) == {category.value for category in Category} - {"total"}
    assert list(palette.CATEGORY_COLOURS) == list(GROUPS) == list(palette.CATEGORY_NAMES) == list(palette.SHORT_NAMES)


def test_a_drawing_for_readers_without_css_has_no_variable_left() -> None:
    names = palette.colours("dark")
    drawing = "".join(f'<path fill="var({name})"/>' for name in names)
    assert palette.resolved(drawing, "dark") == "".join(f'<path fill="{value}"/>' for value in names.values())
