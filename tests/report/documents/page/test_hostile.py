"""What a run wrote is text: whatever stands in its names, reasons and documents, nothing of it runs or draws."""

from pathlib import Path

import pytest
import yaml

from tests.report.documents.page.browser import Browser
from tests.report.documents.page.conftest import ENVIRONMENT, write_frames
from tests.report.sample_run import RUN_ID, SampleTrial, completed_trial, failed_trial, model, skipped_trial, spec
from zerobench.records.records import Failure
from zerobench.report.documents.page import page_html
from zerobench.report.documents.report import markdown_report
from zerobench.report.export.frames_document import json_document

RUNS = "window.hit=1"
EVIL = (
    f"<script>{RUNS}</script>",
    f'"><svg onload="{RUNS}">',
    f"'><img src=x onerror='{RUNS}'>",
    f"</pre></details><script>{RUNS}</script>",
    f"</style></title><script>{RUNS}</script>",
    f"javascript:{RUNS}",
    f"]]><!-- --!><a href='javascript:{RUNS}'>",
    "{{ 7 * 1191 }}{% raise %}{# #}",
    "\u202egnissim\u202c\u2066\u200b\x00\x1b[31m",
)
PLAIN = EVIL[:-1]
"""Those whose every character can be seen, so that they stand in the page as they are."""


def hostile(trial: SampleTrial, text: str) -> SampleTrial:
    """The trial with `text` wherever a rank's record holds words."""
    words = {"device_name": text, "hostname": text, "notes": [text], "departures": [text], "flops_formula": text}
    return trial.with_ranks(**words, effective_config={text: {text: text}})


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run that is hostile wherever a run may be."""
    folder = tmp_path_factory.mktemp("hostile")
    named = [spec("zero1", gpus_per_node=1, model=model(text)) for text in EVIL]
    trials = [hostile(completed_trial(one), text) for one, text in zip(named, EVIL, strict=True)]
    for text in EVIL:
        evil = {"message": text, "exception": text, "traceback": text, "evidence": text, "stacks": {"0": text}}
        trials.append(failed_trial(spec("zero2", model=model(text)), Failure.model_validate(evil)))
        trials.append(skipped_trial(spec("zero3", model=model(text), gpus_per_node=1), text))
    sweep = {"name": EVIL[0], "description": " ".join(EVIL), **{text: text for text in EVIL}}
    environment = {**ENVIRONMENT, "hostname": EVIL[1], **{text: {text: text} for text in EVIL}}
    frames = write_frames(folder / RUN_ID, trials, yaml.safe_dump(sweep), environment)
    path = folder / "page.html"
    path.write_text(page_html(frames), encoding="utf-8")
    return path


@pytest.fixture
def attacked(browser: Browser, hostile_page: Path) -> Browser:
    """The hostile page, loaded, everything in it unfolded."""
    browser.open(hostile_page)
    browser.ask("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    return browser


def test_nothing_that_a_run_wrote_executes(attacked: Browser) -> None:
    assert attacked.ask("return window.hit === undefined")
    assert attacked.console() == []
    assert [address for address in attacked.requests() if not address.startswith(("file:", "data:,"))] == []


def test_nothing_that_a_run_wrote_becomes_markup(attacked: Browser) -> None:
    for selector in ("img", "a[href]:not([href^='#'])", "svg script", "svg a", "[onload]", "[onerror]", "iframe"):
        assert attacked.ask("return document.querySelectorAll(arguments[0]).length", selector) == 0, selector
    assert attacked.ask("return document.scripts.length") == 1
    assert attacked.ask("return document.querySelectorAll('h1').length") == 1


def test_what_a_run_wrote_is_read_as_it_was_written(attacked: Browser) -> None:
    shown = attacked.ask("return document.body.textContent")
    for text in PLAIN:
        assert text in shown
    assert "8337" not in shown, "the template worked out what a run had written"


def test_characters_that_turn_or_hide_text_are_written_out(attacked: Browser) -> None:
    shown = attacked.ask("return document.documentElement.outerHTML")
    assert [c for c in "\u202e\u202c\u2066\u200b\x00\x1b" if c in shown] == []
    assert "\\u202e" in shown


def test_a_key_in_a_deepspeed_config_is_in_no_page_and_no_markdown(tmp_path: Path) -> None:
    asked = spec("zero1", gpus_per_node=1, ds_config={"comet.api_key": "hush-hush-0123456789"})
    sweep = {"name": "keyed", "axes": {"ds_config": {"comet": {"api_key": "hush-hush-0123456789"}}}}
    frames = write_frames(tmp_path / RUN_ID, [completed_trial(asked)], yaml.safe_dump(sweep), ENVIRONMENT)
    for text in (page_html(frames), markdown_report(frames), json_document(frames)):
        assert "keyed" in text
        assert "hush-hush" not in text


def test_a_hovered_mark_shows_markup_as_text(attacked: Browser) -> None:
    found = attacked.ask("""
        const marks = [...document.querySelectorAll("figure .role-mark [aria-label*='<script>']")];
        const width = (mark) => mark.getBoundingClientRect().width;
        marks.sort((a, b) => width(b) - width(a))[0].id = "marked";
        return marks.length;
    """)
    assert found > 0
    said = attacked.hover("#marked")
    assert f"<script>{RUNS}</script>" in said
    assert attacked.ask("return window.hit === undefined && document.querySelector('#tip').children.length === 0")


def test_even_markup_that_got_through_would_not_run(browser: Browser, hostile_page: Path, tmp_path: Path) -> None:
    breach = f"<body><script>{RUNS}</script><img src=x onerror='{RUNS}'><svg onload='{RUNS}'></svg>"
    breach += f"<iframe srcdoc='<script>parent.{RUNS}</script>'></iframe><form action='http://127.0.0.1:9/'></form>"
    text = hostile_page.read_text(encoding="utf-8")
    assert text.count("<body>") == 1
    path = tmp_path / "breached.html"
    path.write_text(text.replace("<body>", breach), encoding="utf-8")
    browser.open(path)
    assert browser.ask("return window.hit === undefined")
    assert any("Content Security Policy" in line for line in browser.console())
