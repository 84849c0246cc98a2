"""Hostile text in GitHub's Markdown, rendered by a real library: it is read, and does nothing."""

import html
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from zerobench.report.documents.text import block, bullets, code, paragraph, prose, table

RENDERER = MarkdownIt("gfm-like")  # tables, strikethrough, bare addresses, HTML let through
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- comment",
    "&lt;b&gt; &amp; &#64;",
    "[text](http://evil.example)",
    "[text][ref]",
    "[ref]: http://evil.example",
    "![picture](http://evil.example/x.png)",
    "<http://evil.example>",
    "http://evil.example/x",
    "see www.evil.example now",
    "ftp://evil.example",
    "mailto:someone@evil.example",
    "someone@evil.example",
    "cc @octocat and @org/team",
    "fixes #12, GH-12, org/repo#12",
    "*bold* **bold** _it_ __it__ ~~gone~~",
    "a | b || c",
    "`code` ``code`` ```",
    "\\ \\| \\[",
    "# heading",
    "## heading",
    "- list",
    "+ list",
    "1. list",
    "2) list",
    "> quote",
    "---",
    "===",
    "    indented code",
    "```sh",
    "$x^2$ $$y$$",
    ":tada: :+1:",
    "| a | b |",
    "line\nbreak\r\nand\u2028more",
    "\x1b[31mred\x07",
    "\u202eright to left",
    "- [ ] task",
]
ALLOWED = {"p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "pre"}


def visible(markdown: str) -> str:
    """What a reader sees: the text of the page, without the spaces of no width."""
    return html.unescape(re.sub(r"<[^>]*>", "", RENDERER.render(markdown))).replace("\N{ZERO WIDTH SPACE}", "").strip()


def expected(text: str) -> str:
    """`text` as a reader should see it: on one line, without control characters, blanks at its ends not shown."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text).strip()


def tags(markdown: str) -> set[str]:
    return set(re.findall(r"</?([a-zA-Z!][\w-]*)", RENDERER.render(markdown)))


def acts_on_github(markdown: str) -> list[str]:
    """What GitHub would still turn into mentions, links to issues and pictures, outside of code."""
    page = re.sub(r"<(code|pre)>.*?</\1>", "", RENDERER.render(markdown), flags=re.DOTALL)
    seen = html.unescape(re.sub(r"<[^>]*>", "", page))
    return re.findall(r"@[\w-]+|#\d+|GH-\d+|:[\w+-]+:|\w+://\S|www\.\w", seen, re.IGNORECASE)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("write", [paragraph, lambda text: bullets([text])[0]], ids=["paragraph", "point"])
def test_hostile_text_is_shown_as_it_is_and_does_nothing(text: str, write: Callable[[str], str]) -> None:
    assert visible(write(text)) == expected(text)
    assert tags(write(text)) <= ALLOWED
    assert acts_on_github(write(text)) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_within_its_cell(text: str) -> None:
    lines = table(("what", "value"), (True, False), [(text, "1"), ("last", text)])
    page = "\n".join(lines)
    cells = re.findall(r"<t[dh]\b[^>]*>(.*?)</t[dh]>", RENDERER.render(page), re.DOTALL)
    shown = [html.unescape(re.sub(r"<[^>]*>", "", cell)).replace("\N{ZERO WIDTH SPACE}", "") for cell in cells]
    assert shown == ["what", "value", expected(text), "1", "last", expected(text)]
    assert tags(page) <= ALLOWED
    assert acts_on_github(page) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_within_its_block_of_code(text: str) -> None:
    page = "\n".join([*block(text, "yaml"), "", "after"])
    assert tags(page) <= ALLOWED
    assert RENDERER.render(page).endswith("</code></pre>\n<p>after</p>\n")


@pytest.mark.parametrize("text", [text for text in HOSTILE if "|" not in text])
def test_hostile_text_stays_within_its_code_span(text: str) -> None:
    page = f"Run {code(text)}."
    assert tags(page) == {"p", "code"}
    assert acts_on_github(page) == []
    assert " ".join(visible(page).split()) == " ".join(f"Run {expected(text)}.".split())


@given(st.text(alphabet=st.sampled_from(list("ab1 @#:/.\\`*_{}[]()<>+-!|~$&=\"'\n\t")) | st.characters(), max_size=40))
def test_no_text_at_all_becomes_markup(text: str) -> None:
    for page in (paragraph(text), f"a {prose(text)} b", "\n".join(table(("h",), (True,), [(text,)]))):
        assert tags(page) <= ALLOWED
        assert acts_on_github(page) == []


def test_ordinary_names_and_figures_are_left_as_they_are() -> None:
    for text in ("zero3 opt=cpu mb4", "reduce_bucket_size 5e8", "-1.25 GiB (+3.1%)", "torch 2.13.0+cpu", "8 x H200"):
        assert prose(text) == text
