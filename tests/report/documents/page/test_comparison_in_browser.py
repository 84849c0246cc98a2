"""The page of two runs side by side, in a real browser: the verdict on top, the drawing on the first screen."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from pypdf import PdfReader

from tests.report.documents.page.browser import Browser
from tests.report.documents.page.test_hostile import EVIL, PLAIN
from tests.report.figures.compare.runs import OUT_OF_MEMORY, after, before, environment, lay_out
from tests.report.sample_run import completed_trial, failed_trial, model, spec
from zerobench.records.store import load_run
from zerobench.report.documents.page.comparison import comparison_pieces
from zerobench.report.figures.compare.comparison import Comparison, compare
from zerobench.report.tables.gate import judge, parse_limits
from zerobench.report.tables.two_runs import comparison_parts


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The sample of an upgrade."""
    path = tmp_path_factory.mktemp("upgrade")
    newer = environment(deepspeed="0.19.8", torch="2.13.0")
    return compare(*map(load_run, (lay_out(path, "old", before()), lay_out(path, "newer", after(), newer))))


def written(comparison: Comparison, limits: str | None, path: Path) -> Path:
    """The page, judged by `limits`."""
    verdicts = judge(comparison, parse_limits(limits)) if limits else []
    path.write_text("".join(comparison_pieces(comparison, verdicts)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(upgraded: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the upgrade, judged."""
    return written(upgraded, "memory:2%,speed:5%", tmp_path_factory.mktemp("page") / "page.html")


@pytest.mark.parametrize("width", [1440, 400])
def test_the_page_opens_with_the_verdict_and_then_the_drawing(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    lead, colour, top = browser.ask("""
        const lead = document.querySelector(".lead");
        const svg = [...document.querySelectorAll("figure svg")].find((drawing) => drawing.checkVisibility());
        return [lead.textContent, getComputedStyle(lead).color, svg.getBoundingClientRect().top];
    """)
    assert lead.startswith("FAILED memory:2%: zero3, completed in BASE, 3 completed, 1 out of device memory in NEW")
    assert colour == "rgb(155, 44, 18)"
    assert 0 < top < 600
    assert browser.console() == []
    assert browser.requests() == [page.resolve().as_uri()]
    needed, shown = browser.ask("return [document.documentElement.scrollWidth, innerWidth]")
    assert needed <= shown


def test_each_trial_has_its_two_bars_one_above_the_other(browser: Browser, page: Path) -> None:
    browser.open(page)
    rows = browser.ask("""
        const labels = [...document.querySelectorAll("#memory-device .role-axis-label text")];
        const named = labels.filter((text) => /: (BASE|NEW)$/.test(text.textContent));
        named.sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top);
        return named.map((text) => text.textContent);
    """)
    assert len(rows) >= 6
    assert rows[0] == "zero2: BASE"  # grew most
    for base, new in zip(rows[::2], rows[1::2], strict=True):
        assert (base.removesuffix("BASE"), "NEW") == (new.removesuffix("NEW"), new[-3:])
    grown = browser.hover("#memory-device .role-mark [aria-label^='zero2: NEW, reduce buffers']")
    assert "of the peak" in grown


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_stands_out_from_what_lies_behind_it(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    assert browser.low_contrasts() == []


def test_every_part_of_the_terminal_is_on_the_page_and_on_paper(
    browser: Browser, page: Path, upgraded: Comparison
) -> None:
    browser.open(page)
    headings = browser.ask("return [...document.querySelectorAll('h2')].map((head) => head.textContent)")
    printed = "".join("".join(part.extract_text() for part in PdfReader(io.BytesIO(browser.pdf())).pages).split())
    for part in comparison_parts(upgraded):
        assert part.title in headings
        assert "".join(part.title.split()) in printed
        for line in (*part.points, *part.warnings):
            assert "".join(line.split()) in printed
    assert headings.index("Gate") < headings.index("BASE and NEW")


def test_a_gate_that_passes_says_so_and_what_grew_most_all_the_same(
    browser: Browser, upgraded: Comparison, tmp_path: Path
) -> None:
    def opening(limits: str | None, base: Comparison) -> list[str]:
        browser.open(written(base, limits, tmp_path / "page.html"))
        found: list[str] = browser.ask("return [...document.querySelectorAll('header p')].map((p) => p.textContent)")
        return found

    trials = [completed_trial(spec("zero1"))]
    runs = lay_out(tmp_path, "one", trials), lay_out(tmp_path, "other", trials)
    assert opening("memory:2%", compare(*map(load_run, runs))) == ["Passed", "No peak grew"]
    bare = opening(None, upgraded)
    assert bare[0] == "zero3, completed in BASE, 3 completed, 1 out of device memory in NEW"
    assert bare[1].startswith("zero2, device start-up peak 10.41 GiB to 11.34 GiB, +951.77 MiB (+8.93%)")
    assert bare[2].startswith("zero1, a step takes 7")


def test_nothing_of_a_hostile_run_runs_or_draws(browser: Browser, tmp_path: Path) -> None:
    trials = [completed_trial(spec("zero1", gpus_per_node=1, model=model(text))) for text in EVIL]
    evil = {**environment(), "versions": {text: text for text in EVIL}, "hostname": EVIL[0]}
    stopped = [*trials[:-1], failed_trial(trials[-1].spec, OUT_OF_MEMORY)]  # so that the headline has a name
    runs = lay_out(tmp_path, "base", trials), lay_out(tmp_path, "new", stopped, evil)
    browser.open(written(compare(*map(load_run, runs)), "memory:2%", tmp_path / "page.html"))
    assert browser.ask("return window.hit === undefined")
    assert browser.ask("return document.querySelectorAll('img, iframe, a:not(nav a), script').length") == 1
    assert browser.console() == []
    text = browser.ask("return document.body.textContent")
    assert all(name in text for name in PLAIN)
    assert not set("\u202e\u200b\x1b") & set(text)
