"""What holds of a page of whatever kind: on a telephone nothing but charts and tables scrolls sideways, and the page of
a run, a plan or a comparison takes five pages of paper.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from pypdf import PdfReader

from tests.estimate.time.predicted_trials import predicted, traced
from tests.report.charts.conftest import scaling_trials
from tests.report.documents.page.browser import Browser
from tests.report.documents.page.conftest import write_frames
from tests.report.documents.run import cluster, plan_trials
from tests.report.figures.compare.runs import after, before, environment, lay_out
from tests.report.figures.test_batch_ramp import fixed, ramped
from tests.report.figures.test_standing import HELD
from tests.report.sample_courses import write_courses
from tests.report.sample_predictions import predicted_trials
from tests.report.sample_run import RUN_ID, SampleTrial, cpu_trials, failed_trial, sample_trials
from zerobench.records.records import Failure
from zerobench.records.store import load_run
from zerobench.report.charts import MAKERS, checkpoints_figure
from zerobench.report.documents.page import page_html
from zerobench.report.documents.page.comparison import comparison_pieces
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.figures.compare.comparison import compare
from zerobench.report.tables.gate import judge, parse_limits
from zerobench.report.tables.standing import TITLE as STOOD

STRATEGIES = Path(__file__).parents[2] / "figures" / "strategies" / "records"
LONG = "a-name-without-any-place-to-break-it-" * 3
MOST_PAGES = 5


def compared(folder: Path) -> str:
    newer = environment(deepspeed="0.19.8", torch="2.13.0")
    sides = (lay_out(folder, "old", before()), lay_out(folder, LONG, after(), newer))
    comparison = compare(*map(load_run, sides))
    return "".join(comparison_pieces(comparison, judge(comparison, parse_limits("memory:2%,speed:5%"))))


def with_courses(folder: Path) -> RunFrames:
    """Three trials whose memory over the step is kept, the second one with an axis of its own."""
    trials = predicted_trials()
    frames = write_frames(folder / RUN_ID, trials, samples=False)
    tops = {trials[at].spec.trial_id: top for at, top in enumerate((3, 900, 4))}
    write_courses(frames.run(RUN_ID).folder, tops)
    return frames


def two_runs(folder: Path) -> RunFrames:
    """The same trials twice."""
    write_frames(folder / RUN_ID, sample_trials())
    other = folder / "other_20260102-120000"
    shutil.copytree(folder / RUN_ID, other)
    for path in (other / "plan.json", *other.glob("trials/*/record.json")):
        path.write_text(path.read_text(encoding="utf-8").replace(RUN_ID, other.name), encoding="utf-8")
    return run_frames([load_run(folder / RUN_ID), load_run(other)])


def expected_steps(folder: Path) -> RunFrames:
    """Trials with an expected step, on several numbers of nodes."""
    trials = [traced(predicted(strategy=f"zero{stage}", num_nodes=nodes)) for stage in (1, 3) for nodes in (1, 4, 64)]
    return write_frames(folder / RUN_ID, trials, samples=False)


RUNS: dict[str, Callable[[Path], RunFrames]] = {
    "sweep": lambda folder: write_frames(folder / f"{LONG}_20260101-120000", sample_trials(), f"name: {LONG}\n"),
    "sweep on CPU": lambda folder: write_frames(folder / RUN_ID, cpu_trials()),
    "sweep over sizes": lambda folder: write_frames(folder / RUN_ID, scaling_trials(), samples=False),
    "batch ramp": lambda folder: write_frames(folder / RUN_ID, [ramped(), fixed()], samples=False),
    "expected steps": expected_steps,
    "plan": lambda folder: write_frames(folder / RUN_ID, plan_trials(cluster(gpu="h200")), samples=False),
    "memory over the step": with_courses,
    "two runs of one sweep": two_runs,
    "ways to train": lambda _: run_frames([load_run(STRATEGIES)]),
}
KINDS = [*RUNS, "compare"]


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFrames]:
    """The runs of a kind of page, read once."""
    return cache(lambda kind: RUNS[kind](tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, runs_of: Callable[[str], RunFrames]) -> Callable[[str], Path]:
    """The file of a kind of page, written once."""

    @cache
    def write(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("kinds")
        path = folder / "page.html"
        html = page_html(runs_of(kind)) if kind in RUNS else compared(folder)
        path.write_text(html, encoding="utf-8")
        return path

    return write


def test_the_kinds_hold_every_chart_that_is_drawn(runs_of: Callable[[str], RunFrames]) -> None:
    undrawn = []
    for make in MAKERS:
        figures = (make(runs_of(kind)) for kind in RUNS)  # until one is drawn
        if not any(figure is not None and figure.drawing is not None for figure in figures):
            undrawn.append(make)
    assert undrawn == [checkpoints_figure], "a table alone"


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


@pytest.mark.parametrize("kind", KINDS)
def test_paper_takes_five_pages(browser: Browser, written: Callable[[str], Path], kind: str) -> None:
    browser.open(written(kind))
    assert len(PdfReader(io.BytesIO(browser.pdf())).pages) <= MOST_PAGES


def test_paper_does_not_list_again_what_a_plan_s_reasons_account_for(browser: Browser, tmp_path: Path) -> None:
    first, *others = plan_trials(cluster(gpu="h200"))
    refused = failed_trial(first.spec, Failure(message="out of memory", standing=HELD))
    page = tmp_path / "page.html"

    def printed(folder: str, trials: list[SampleTrial]) -> str:
        page.write_text(page_html(write_frames(tmp_path / folder / RUN_ID, trials, samples=False)), encoding="utf-8")
        browser.open(page)
        return "".join(sheet.extract_text() for sheet in PdfReader(io.BytesIO(browser.pdf())).pages)

    assert STOOD in printed("sweep", [refused])
    planned = printed("plan", [refused, *others])
    assert STOOD in page.read_text(encoding="utf-8")
    assert STOOD not in planned


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_is_seen_whole_and_can_be_read_on_a_telephone(
    browser: Browser, written: Callable[[str], Path], kind: str, dark: bool
) -> None:
    browser.open(written(kind), width=400, dark=dark)
    seen = "return [...document.querySelectorAll(arguments[0])].map((e) => e.checkVisibility())"
    assert all(shown := browser.ask(seen, "figure .narrow svg"))
    assert browser.ask(seen, "figure .wide svg") == [False] * len(shown)
    assert browser.ask(UNREADABLE) == []
    assert not browser.low_contrasts(3)
    assert [
        text for text in browser.low_contrasts() if not text.startswith("'//'")
    ] == []  # large and bold: 3 is enough


def test_a_wide_screen_and_paper_have_the_wide_drawing_alone(browser: Browser, written: Callable[[str], Path]) -> None:
    browser.open(written("sweep"))
    assert browser.ask("return [...document.querySelectorAll('.narrow')].some((e) => e.checkVisibility())") is False
    browser.open(written("sweep"), width=400)
    browser.command("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.ask("return document.querySelector('figure .wide').checkVisibility()")
        assert not browser.ask("return document.querySelector('figure .narrow').checkVisibility()")
    finally:
        browser.command("Emulation.setEmulatedMedia", media="")


UNREADABLE = """
const faults = [], edge = document.documentElement.clientWidth;
const overlap = (a, b) => Math.min(Math.min(a.right, b.right) - Math.max(a.left, b.left),
                                   Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
const isOnPoint = (one) => one.name.length === 1 && getComputedStyle(one.text).fontWeight === "700";
document.querySelectorAll("figure").forEach((e) => { e.style.contentVisibility = "visible"; });
for (const svg of document.querySelectorAll(".narrow svg")) {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const frame = svg.parentElement;
  if (frame.scrollWidth > frame.clientWidth) faults.push("scrolls");
  const texts = [...svg.querySelectorAll("text")].filter((text) =>
    text.textContent.trim() && getComputedStyle(text).opacity !== "0");
  const boxes = texts.map((text) => ({text, name: text.textContent, box: text.getBoundingClientRect()}));
  for (const {text, name, box} of boxes) {
    if (box.left < 0 || box.right > edge) faults.push(`outside: ${name}`);
    if (name.endsWith("\\u2026")) faults.push(`cut off: ${name}`);
    if (parseFloat(getComputedStyle(text).fontSize) * scale < 10) faults.push(`small: ${name}`);
  }
  boxes.forEach((one, at) => boxes.slice(at + 1).forEach((other) => {
    if (isOnPoint(one) && isOnPoint(other)) return;  // the point drawn later covers the other and its letter
    if (one.name !== other.name && overlap(one.box, other.box) > 2) faults.push(`${one.name} over ${other.name}`);
  }));
}
return faults;
"""
