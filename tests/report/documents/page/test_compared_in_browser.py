"""The comparison of ways to train in a real browser: whole on the screen, and whole on paper."""

import io
from pathlib import Path

import pytest
from pypdf import PdfReader

from tests.report.documents.page.browser import Browser
from tests.tools.at_least_one import at_least_one
from zerobench.records.store import load_run
from zerobench.report.charts import model_states
from zerobench.report.charts.strategies import speed_figure
from zerobench.report.documents.page import page_html
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.figures.strategies.claims import claims

RECORDS = Path(__file__).parents[2] / "figures" / "strategies" / "records"
TABLES = "section[aria-labelledby=compared] .scroll"


@pytest.fixture(scope="module")
def frames() -> RunFrames:
    return run_frames([load_run(RECORDS)])


@pytest.fixture
def opened(browser: Browser, frames: RunFrames, tmp_path: Path) -> Browser:
    figures = [figure for make in (speed_figure, model_states.figure) if (figure := make(frames)) is not None]
    page = tmp_path / "page.html"
    page.write_text(page_html(frames, figures), encoding="utf-8")
    browser.open(page)
    return browser


def test_both_charts_and_both_tables_are_seen_whole_on_the_screen(opened: Browser) -> None:
    drawn = opened.ask("""
        return ["speed-up", "model-states"].map((id) => {
          const svg = document.querySelector(`#${id} svg`);
          svg.scrollIntoView();
          return [svg.getBoundingClientRect().width, svg.querySelectorAll("path").length];
        });
    """)
    assert all(width > 600 and paths > 10 for width, paths in drawn)
    sizes = opened.ask(f"return [...document.querySelectorAll('{TABLES}')].map((e) => [e.clientWidth, e.scrollWidth])")
    assert len(sizes) == 2
    assert all(shown == needed for shown, needed in sizes)
    assert opened.console() == []


def test_paper_has_every_row_and_every_claim(opened: Browser, frames: RunFrames) -> None:
    printed = " ".join(page.extract_text() for page in PdfReader(io.BytesIO(opened.pdf())).pages)
    text = "".join(printed.split())
    for row in at_least_one(frames.comparison):
        assert "".join(row.label.split()) in text
    for claim in claims(frames.comparison):
        assert "".join(claim.text.split()) in text
        assert "".join(claim.measured.split())[:40] in text
