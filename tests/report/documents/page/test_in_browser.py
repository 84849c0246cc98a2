"""The page in a real browser: quiet, complete, readable in both colours, on paper and on a telephone."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from pypdf import PdfReader

from tests.report.documents.page.browser import Browser
from tests.report.documents.page.conftest import write_frames
from tests.report.sample_run import RUN_ID, cpu_trials
from zerobench.report.documents.page import page_html
from zerobench.report.export.run_frames import RunFrames

MARK = "figure .role-mark [aria-label]"


@pytest.fixture
def opened(browser: Browser, sample_page: Path) -> Browser:
    """The page of the measured trials, loaded."""
    browser.open(sample_page)
    return browser


def test_the_page_loads_nothing_but_itself_and_complains_of_nothing(opened: Browser, sample_page: Path) -> None:
    assert opened.requests() == [sample_page.resolve().as_uri()]
    assert opened.console() == []


def test_the_page_opens_on_its_first_drawing(browser: Browser, sample_page: Path) -> None:
    browser.open(sample_page, width=1440)
    top = browser.ask("return document.querySelector('figure svg').getBoundingClientRect().top")
    assert 0 < top < 600
    assert browser.ask("return document.querySelector('.lead').getBoundingClientRect().top") < top


def test_every_figure_is_drawn_and_seen(opened: Browser) -> None:
    sizes = opened.ask("""
        return [...document.querySelectorAll("figure .wide svg")].map((svg) => {
          svg.scrollIntoView();
          const box = svg.getBoundingClientRect(), drawn = svg.getBBox();
          return [svg.closest("figure").id, box.width, box.height, drawn.width, svg.querySelectorAll("path").length];
        });
    """)
    assert len(sizes) >= 5
    for key, width, height, drawn_width, num_paths in sizes:
        assert width > 600, key
        assert height > 100, key
        assert drawn_width > 100, key
        assert num_paths > 3, key


def test_a_figure_that_cannot_be_drawn_says_why(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(page_html(write_frames(tmp_path / RUN_ID, cpu_trials())), encoding="utf-8")
    browser.open(page)
    captions = browser.ask("""
        return [...document.querySelectorAll("figure:not(:has(svg)) figcaption > span")].map((e) => e.textContent);
    """)
    assert captions
    assert all(len(caption) > 20 for caption in captions)


def test_hovering_over_a_mark_says_its_bytes_and_its_share(opened: Browser) -> None:
    said = opened.hover(MARK)
    assert re.search(r"\d (B|[KMGT]iB)\b.*\d%", said), said
    assert said == opened.ask(f"return document.querySelector('{MARK}').getAttribute('aria-label')")
    assert opened.hover("h1") == ""


def test_the_arrow_keys_walk_through_the_marks(opened: Browser) -> None:
    said = opened.ask(f"""
        const svg = document.querySelector("{MARK}").ownerSVGElement, said = [];
        svg.focus();
        for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft", "Escape"]) {{
          svg.dispatchEvent(new KeyboardEvent("keydown", {{key, bubbles: true, cancelable: true}}));
          const tip = document.getElementById("tip");
          said.push(tip.hidden ? "" : tip.innerText);
        }}
        return said;
    """)
    first, second, back, closed = said
    assert first
    assert second not in {"", first}
    assert (back, closed) == (first, "")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_stands_out_from_what_lies_behind_it(browser: Browser, sample_page: Path, dark: bool) -> None:
    browser.open(sample_page, dark=dark)
    assert browser.low_contrasts() == []


def test_dark_mode_follows_the_system_unless_the_reader_chooses(browser: Browser, sample_page: Path) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    browser.open(sample_page)
    light = browser.ask(background)
    browser.ask("document.getElementById('theme-dark').click()")
    dark = browser.ask(background)
    browser.open(sample_page, dark=True)
    assert browser.ask(background) == dark != light
    browser.ask("document.getElementById('theme-light').click()")
    assert browser.ask(background) == light


def test_the_copy_button_copies_the_document_to_the_letter(opened: Browser, sample_frames: RunFrames) -> None:
    opened.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    opened.command("Emulation.setFocusEmulationEnabled", enabled=True)
    copied = opened.driver.execute_async_script("""
        const done = arguments[0], button = document.querySelector("button.copy[data-source=trial-1-trial]");
        button.closest("details").open = true;
        button.click();
        setTimeout(() => navigator.clipboard.readText().then(done, (error) => done(String(error))), 200);
    """)
    [run], first = sample_frames.runs, sample_frames.trials["trial_id"].iloc[0]
    assert copied == run.folder.trial(first).spec.read_text()


def test_a_click_on_a_head_sorts_the_trials_and_leaves_blanks_last(opened: Browser) -> None:
    sorted_by = """
        const table = document.querySelector("section[aria-labelledby=trials] table");
        const head = [...table.tHead.rows[0].cells].find((cell) => cell.textContent.startsWith("tokens/s"));
        head.querySelector("button").click();
        const cells = [...table.tBodies[0].rows].map((row) => row.cells[head.cellIndex].textContent);
        return [head.getAttribute("aria-sort"), cells];
    """
    (first, up), (second, down) = opened.ask(sorted_by), opened.ask(sorted_by)
    assert (first, second) == ("ascending", "descending")
    numbers = [int(cell.replace(",", "")) for cell in up if cell != "-"]
    assert numbers == sorted(numbers)
    assert len(numbers) > 5
    assert down == [*(f"{value:,}" for value in reversed(numbers)), *["-"] * (len(up) - len(numbers))]


def test_a_click_on_a_bar_leads_to_its_trials_row(opened: Browser) -> None:
    found = opened.ask("""
        const bar = document.querySelector("#memory-per-gpu .role-mark [aria-label^='zero3 opt=nvme param=cpu,']");
        bar.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        const rows = [...document.querySelectorAll("tr.found")];
        const box = rows[0].getBoundingClientRect();
        return [rows.map((row) => row.cells[0].textContent), box.top >= 0 && box.bottom <= innerHeight];
    """)
    assert found == [["zero3 opt=nvme param=cpu"], True]


def test_paper_has_the_answer_every_figure_and_the_trials_and_what_the_reader_opened(opened: Browser) -> None:
    def printed() -> tuple[int, str]:
        pages = PdfReader(io.BytesIO(opened.pdf())).pages
        return len(pages), "\n".join(page.extract_text() for page in pages)

    num_pages, text = printed()
    num_figures = opened.ask("return document.querySelectorAll('figure .wide svg').length")
    assert num_pages <= 3 + num_figures / 2
    assert all(f"Figure {number}." in text for number in range(1, num_figures + 1))
    assert "zero3 opt=nvme" in text
    assert '"micro_batch_size"' not in text
    assert "Copy" not in text
    opened.ask("for (const one of document.querySelectorAll('#configuration ~ * details')) one.open = true")
    assert '"micro_batch_size"' in printed()[1]


def test_on_a_telephone_only_tables_and_charts_scroll_sideways(browser: Browser, sample_page: Path) -> None:
    browser.open(sample_page, width=400)
    assert browser.ask("const page = document.documentElement; return page.scrollWidth === page.clientWidth")
    outside = browser.ask("""
        return [...document.querySelectorAll("h1, h2, h3, p, li, dd, summary, figcaption")]
          .filter((e) => e.checkVisibility())
          .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth)
          .map((e) => e.innerText);
    """)
    assert outside == []


def test_without_scripts_the_whole_page_is_there(browser: Browser, sample_page: Path) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(sample_page)
        document = browser.command("DOM.getDocument", depth=0)["root"]["nodeId"]
        drawn = browser.command("DOM.querySelectorAll", nodeId=document, selector="figure svg path")["nodeIds"]
        buttons = browser.command("DOM.querySelectorAll", nodeId=document, selector="button.copy:not([hidden])")
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)
    assert len(drawn) > 50
    assert buttons["nodeIds"] == []
