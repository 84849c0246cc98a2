"""A chart's SVG on its way into the page: it draws, it is named by its figure, and nothing else of it is left."""

import re

import pytest

from zerobench.report.documents.page.drawing import drawing

OPEN = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="100%" aria-label="old">'


def drawn(inside: str, key: str = "memory") -> str:
    return drawing(f"{OPEN}{inside}</svg>", key)


def test_what_draws_stays_as_it_was() -> None:
    inside = '<g class="role-mark"><path d="M0,0h9v9Z" fill="var(--ink)" aria-label="zero1: 3 GiB, 41%" /></g>'
    assert inside in drawn(inside)


@pytest.mark.parametrize(
    "inside",
    [
        "<script>window.hit=1</script>",
        "<foreignObject><p>text</p></foreignObject>",
        '<a href="javascript:window.hit=1"><text>link</text></a>',
        '<image href="https://example.org/x.png" />',
        '<use href="#other" />',
        '<animate attributeName="href" to="javascript:window.hit=1" />',
        "<style>@import url(https://example.org/x.css);</style>",
    ],
)
def test_what_does_not_draw_is_left_out_with_all_it_holds(inside: str) -> None:
    shown = drawn(f'<path d="M0,0h9" />{inside}')
    assert re.findall(r"<(\w+)", shown) == ["svg", "path"]


@pytest.mark.parametrize(
    "attribute",
    [
        'onload="window.hit=1"',
        'onClick="window.hit=1"',
        'fill="url(https://example.org/x#y)"',
        'style="background: url(https://example.org/x)"',
        'xlink:href="javascript:window.hit=1" xmlns:xlink="http://www.w3.org/1999/xlink"',
        'tabindex="1"',
    ],
)
def test_what_would_run_or_fetch_is_left_out(attribute: str) -> None:
    shown = drawn(f'<path d="M0,0h9" {attribute} />')
    assert re.search(r"<path d=\"M0,0h9\" ?/>", shown), shown


def test_words_for_readers_may_say_anything() -> None:
    label = "url(#x), javascript:1, on = 3 &lt;script&gt;"
    assert f'aria-label="{label}"' in drawn(f'<path aria-label="{label}" />')


def test_ids_of_two_drawings_never_meet() -> None:
    inside = '<defs><clipPath id="clip0"><path d="M0,0h9" /></clipPath></defs><g clip-path="url(#clip0)" />'
    for key in ("memory", "speed"):
        shown = drawn(inside, key)
        assert f'id="{key}-clip0"' in shown
        assert f'clip-path="url(#{key}-clip0)"' in shown


def test_an_id_that_is_the_figures_own_already_stays() -> None:
    shown = drawn('<defs><pattern id="memory-hatch" /></defs><path fill="url(#memory-hatch)" />')
    assert 'id="memory-hatch"' in shown
    assert 'fill="url(#memory-hatch)"' in shown


def test_a_screen_reader_is_told_the_figures_title_and_caption() -> None:
    opening = drawn("").partition(">")[0]
    assert 'role="img" aria-labelledby="memory-title" aria-describedby="memory-caption"' in opening
    assert "aria-label=" not in opening


@pytest.mark.parametrize("svg", ["<svg", "<p>no drawing</p>", "", '<svg viewBox="0 0 1 1"></svg>'])
def test_what_is_no_svg_is_refused(svg: str) -> None:
    with pytest.raises(ValueError, match="memory: not"):
        drawing(svg, "memory")


def test_entities_are_refused() -> None:
    bomb = '<!DOCTYPE svg [<!ENTITY a "aaaa">]>' + OPEN + "<text>&a;</text></svg>"
    with pytest.raises(ValueError, match="document type"):
        drawing(bomb, "memory")
