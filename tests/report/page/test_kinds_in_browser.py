"""What holds of a page of whatever kind: on a telephone nothing but charts and tables scrolls sideways, and the page of
a run, a plan or a comparison takes five pages of paper.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from pypdf import PdfReader

from tests.report.compare.runs import after, before, environment, lay_out
from tests.report.page.browser import Browser
from tests.report.page.conftest import write_frames
from tests.report.plan.run import cluster, plan_trials
from tests.report.sample_run import RUN_ID, cpu_trials, sample_trials
from zerobench.report.charts import figures
from zerobench.report.compare.comparison import compare
from zerobench.report.compare.gate import judge, parse_limits
from zerobench.report.frames.run_frames import RunFrames, run_frames
from zerobench.report.page import page_html
from zerobench.report.page.comparison import comparison_pieces
from zerobench.store import load_run

STRATEGIES = Path(__file__).parent.with_name("strategies") / "records"
LONG = "a-name-without-any-place-to-break-it-" * 3
MOST_PAGES = 5
LARGER = {"two runs of one sweep", "ways to train"}
"""Pages with twice the tables."""


def drawn(frames: RunFrames) -> str:
    return page_html(frames, figures(frames))


def compared(folder: Path) -> str:
    newer = environment(deepspeed="0.19.8", torch="2.13.0")
    sides = (lay_out(folder, "old", before()), lay_out(folder, LONG, after(), newer))
    comparison = compare(*map(load_run, sides))
    return "".join(comparison_pieces(comparison, judge(comparison, parse_limits("memory:2%,speed:5%"))))


KINDS: dict[str, Callable[[Path], str]] = {
    "sweep": lambda folder: drawn(write_frames(folder / f"{LONG}_20260101-120000", sample_trials(), f"name: {LONG}\n")),
    "sweep on CPU": lambda folder: drawn(write_frames(folder / RUN_ID, cpu_trials())),
    "plan": lambda folder: drawn(write_frames(folder / RUN_ID, plan_trials(cluster(gpu="h200")), samples=False)),
    "two runs of one sweep": lambda folder: drawn(
        run_frames([write_frames(folder / name, sample_trials()).runs[0] for name in (RUN_ID, "other_20260102-120000")])
    ),
    "ways to train": lambda _: drawn(run_frames([load_run(STRATEGIES)])),
    "compare": compared,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a kind of page, written once."""

    @cache
    def write(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("kinds")
        path = folder / "page.html"
        path.write_text(KINDS[kind](folder), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_charts_and_tables_scrolls_sideways_on_a_telephone(
    browser: Browser, written: Callable[[str], Path], kind: str
) -> None:
    browser.open(written(kind), width=400)
    needed, shown = browser.ask("""
        document.querySelectorAll("figure, .lazy").forEach((e) => { e.style.contentVisibility = "visible"; });
        document.querySelectorAll("details").forEach((e) => { e.open = true; });
        const page = document.documentElement;
        return [page.scrollWidth, page.clientWidth];
    """)
    assert needed == shown
    assert browser.ask("return document.querySelectorAll('figure svg').length") > 0


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - LARGER))
def test_paper_takes_five_pages(browser: Browser, written: Callable[[str], Path], kind: str) -> None:
    browser.open(written(kind))
    assert len(PdfReader(io.BytesIO(browser.pdf())).pages) <= MOST_PAGES
