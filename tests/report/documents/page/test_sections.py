"""The page's sections, read from its markup: nothing is missing, nothing predicted passes for measured."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.report.documents.page.conftest import ENVIRONMENT, write_frames
from tests.report.documents.run import cluster, plan_trials
from tests.report.sample_run import RUN_ID, completed_trial, cpu_trials, sample_trials, spec, write_run
from tests.tools.known import known
from zerobench.common.vocabulary import Status
from zerobench.records.store import load_run
from zerobench.report.documents.page import page_html
from zerobench.report.documents.page.configuration import MOST_IN_FULL
from zerobench.report.documents.page.environment import environment_grids
from zerobench.report.documents.view import read_plan
from zerobench.report.explain.choice import decide
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.tables.figure import Drawing, Figure
from zerobench.report.tables.grid import MANY_ROWS, columns_grid, table_grid
from zerobench.report.tables.trials import trials_table
from zerobench.report.words.visible import visible


def parsed(html: str) -> ET.Element:
    """The page's body as a tree: the template writes what XML takes, but for the void elements of the head."""
    body = html[html.index('<div class="sheet">') : html.index("<script>")].rpartition("</div>")[0] + "</div>"
    body = re.sub(r"<(input\b[^>]*?) ?(checked)?>", r"<\1/>", body)
    body = re.sub(r" (hidden)(?=[ >])", r' \1=""', body)
    body = re.sub(r" class=number", ' class="number"', body)
    return ET.fromstring(body)  # noqa: S314 -- the page was written a moment ago, by the code under test


@pytest.fixture(scope="module")
def page(sample_frames: RunFrames) -> ET.Element:
    return parsed(page_html(sample_frames, figures=[]))


def words(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def section(page: ET.Element, key: str) -> ET.Element:
    found = page.find(f".//section[@aria-labelledby='{key}']")
    assert found is not None, key
    return found


def rows(element: ET.Element) -> list[list[str]]:
    return [[words(cell) for cell in row] for row in element.findall(".//tbody/tr")]


def test_every_trial_is_in_the_table_with_its_label_and_its_end(page: ET.Element, sample_frames: RunFrames) -> None:
    lines = rows(section(page, "trials"))
    assert [line[0] for line in lines] == list(sample_frames.trials["label"])
    assert [line[1] for line in lines] == [s.replace("_", " ") for s in sample_frames.trials["status"]]


def test_every_table_has_a_caption_and_heads_for_its_columns_and_rows(page: ET.Element) -> None:
    tables = page.findall(".//table")
    assert len(tables) >= 5
    for table in tables:
        assert words(table.find("caption"))  # type: ignore[arg-type]
        assert all(head.get("scope") == "col" for head in table.findall("./thead/tr/th"))
        assert all(row[0].get("scope") == "row" and row[0].tag == "th" for row in table.findall("./tbody/tr"))
        widths = {len(row) for row in table.findall("./tbody/tr")} | {len(table.findall("./thead/tr/th"))}
        assert len(widths) == 1


def test_each_trial_without_figures_has_its_reason(page: ET.Element) -> None:
    outcomes = section(page, "outcomes")
    assert "3 trials: 1 out of device memory, 1 timeout, 1 skipped." in words(outcomes)
    why = {line[0]: line[-1] for line in rows(outcomes)}
    assert why["zero0 mb64"].startswith("the device ran out of memory (rank 2, backward, step 1, requested 12.00 GiB")
    assert "rule offload_param_needs_stage_3" in why["zero2 param=cpu"]
    assert "rank 1:\nall_gather" in "".join(outcomes.itertext())


def test_a_row_that_is_not_to_be_believed_says_so_in_words(page: ET.Element) -> None:
    trials = section(page, "trials")
    by_label = {line[0]: line[-1] for line in rows(trials)}
    assert by_label["zero1 mb4 ga2"] == "losses differ"
    assert by_label["zero2 reduce_bucket=5e8"] == "speed void"
    assert "zero1 mb4 ga2: losses differ from the reference by 0.31" in words(trials)


def test_gradients_of_another_size_are_a_doubt_of_their_own(tmp_path: Path) -> None:
    trials = [completed_trial(spec("zero1")), completed_trial(spec("zero2"), norm_factor=2.0)]
    write_run(tmp_path / RUN_ID, trials, samples=False)
    element = parsed(page_html(run_frames([load_run(tmp_path / RUN_ID)]), figures=[]))
    right, wrong = rows(section(element, "trials"))
    assert (right[-1], wrong[-1]) == ("", "gradient norms differ")
    assert wrong[-3:-1] == ["1.0e-04", "1.0e+00"]


def test_a_row_is_marked_by_what_became_of_its_trial(page: ET.Element) -> None:
    marks = {words(row[0]): row.get("class") for row in section(page, "trials").findall(".//tbody/tr")}
    assert marks["zero1"] is None
    assert marks["zero1 mb4 ga2"] == "doubted"
    assert marks["zero0 mb64"] == marks["zero3 ckpt"] == "failed"
    assert marks["zero2 param=cpu"] == "skipped"


def test_what_is_predicted_says_so_in_every_row(predicted_frames: RunFrames) -> None:
    table = table_grid(trials_table(predicted_frames.figures))
    at = [head.text for head in table.headers].index("figures are")
    for row, evidence in zip(table.rows, predicted_frames.trials["evidence"], strict=True):
        expected = "measured" if evidence == "measured" else f"predicted ({evidence}"
        assert row.cells[at].startswith(expected)
    assert {row.kind for row in table.rows} >= {"", "predicted"}


def test_predictions_of_one_kind_say_so_once_and_their_table_has_fit_and_expected_time(tmp_path: Path) -> None:
    trials = [t for t in plan_trials(cluster(gpu="h200")) if t.record.status is Status.COMPLETED]
    frames = write_frames(tmp_path / RUN_ID, trials, samples=False)
    table = table_grid(trials_table(frames.figures))
    heads = [head.text for head in table.headers]
    assert "figures are" not in heads
    assert table.caption.endswith("All figures are predicted (simulated on H200 SXM).")
    first, expected = frames.figures[0], known(frames.figures[0].expected)
    cells = dict(zip(heads, table.rows[0].cells, strict=True))
    assert cells["fits"] == "yes"
    assert cells["expected tokens/s"] == f"{round(first.spec.global_batch_tokens / expected.step_s):,}"


def test_trials_fit_as_their_plan_says_though_nobody_gave_the_hosts_memory(tmp_path: Path) -> None:
    place = replace(cluster(gpu="h200"), host_memory_bytes=None)
    frames = write_frames(tmp_path / RUN_ID, plan_trials(place), samples=False)
    table = table_grid(trials_table([one for one in frames.figures if one.is_completed]))
    at = [head.text for head in table.headers].index("fits")
    said = [row.fit.verdict for row in read_plan(tmp_path / RUN_ID, place)[1]]
    assert [row.cells[at] for row in table.rows] == said
    assert {"yes", "not checked"} <= set(said)


def test_the_page_of_a_plan_says_why_not_the_others(tmp_path: Path) -> None:
    place = cluster(gpu="h200")
    frames = write_frames(tmp_path / RUN_ID, plan_trials(place), samples=False)
    html = page_html(frames, [])
    best = known(decide(read_plan(tmp_path / RUN_ID, place)[1]))
    assert f"Why not the others, compared with {best.best.label}" in html
    assert "fits, slower: " in html


def test_measured_trials_have_no_reasons(sample_frames: RunFrames) -> None:
    assert "Why not the others" not in page_html(sample_frames, [])


def test_a_column_that_nobody_fills_is_left_out(tmp_path: Path) -> None:
    table = table_grid(trials_table(write_frames(tmp_path / RUN_ID, cpu_trials(), samples=False).figures))
    heads = " ".join(head.text for head in table.headers)
    assert "NVML" not in heads
    assert "capacity" not in heads
    assert "host peak" in heads


def test_small_bytes_beside_large_ones_keep_their_digits(sample_frames: RunFrames) -> None:
    sized = [
        replace(one, device_peak_bytes=size)
        for one, size in zip(sample_frames.figures[:2], (150 * 2**30, 2**28), strict=True)
    ]
    table = table_grid(trials_table(sized))
    at = [head.text for head in table.headers].index("device peak, GiB")
    assert [row.cells[at] for row in table.rows] == ["150.00", "0.25"]


def test_the_environment_lists_what_the_capture_saw_in_units_for_people(page: ET.Element) -> None:
    values = dict(line[:2] for line in rows(section(page, "environment")))
    assert values["torch"] == "2.13.0"
    assert values["driver, version"] == "580.65.06"
    assert values["memory"] == "1.00 TiB"
    assert values["gpus 0"] == "index 0, uuid GPU-0, name NVIDIA H100 80GB HBM3, total 80.00 GiB"
    assert values["variables, NCCL_DEBUG"] == "WARN"
    assert "triton" not in values


def test_several_runs_stand_side_by_side_in_the_environment() -> None:
    other = {**ENVIRONMENT, "versions": {"torch": "2.12.0"}, "new_thing": {"deep": 3}}
    versions, hardware, _ = environment_grids({"one": ENVIRONMENT, "two": other})
    assert [head.text for head in versions.headers] == ["name", "one", "two"]
    assert ["torch", "2.13.0", "2.12.0"] in [list(row.cells) for row in versions.rows]
    assert ["new thing, deep", "-", "3"] in [list(row.cells) for row in hardware.rows]


def test_the_configuration_is_exact(page: ET.Element, sample_frames: RunFrames) -> None:
    [run] = sample_frames.runs
    blocks = {pre.get("id"): "".join(pre.itertext()) for pre in page.findall(".//pre")}
    assert blocks["sweep-1"] == "\n" + run.folder.sweep.read_text()
    for index, trial_id in enumerate(sample_frames.trials["trial_id"], start=1):
        assert blocks[f"trial-{index}-trial"] == "\n" + run.folder.trial(trial_id).spec.read_text()
    assert json.loads(blocks["trial-2-effective"])["zero_optimization"]["stage"] == 0
    assert len(sample_frames.trials) < MOST_IN_FULL


def test_a_sweep_with_characters_that_cannot_be_seen_is_written_so_that_they_can(tmp_path: Path) -> None:
    sweep = {"name": "a\u202eb", "axes": {"model": ["\u2066x"]}}
    text = yaml.safe_dump(sweep, allow_unicode=True).replace("\\u202E", "\u202e")
    frames = write_frames(tmp_path / RUN_ID, sample_trials()[:1], f"# \u202e\n{text}", samples=False)
    [block] = [pre for pre in parsed(page_html(frames, figures=[])).findall(".//pre") if pre.get("id") == "sweep-1"]
    shown = "".join(block.itertext())
    assert "\u202e" not in shown
    assert yaml.safe_load(shown) == sweep


@pytest.mark.parametrize("text", ["\u202e\u2066", "\x00\x1b", "\U000e0041", "\ud800"])
def test_json_with_hidden_characters_keeps_its_meaning_when_they_are_written_out(text: str) -> None:
    shown = visible(json.dumps({"key": text}, ensure_ascii=False).replace("\\u0000", "\x00"))
    assert all(c.isprintable() for c in shown)
    assert json.loads(shown) == {"key": text}


def test_lines_and_tabs_are_no_hidden_characters() -> None:
    assert visible("a\n\tb") == "a\n\tb"


def test_the_policy_allows_the_pages_own_script_and_no_other(sample_frames: RunFrames) -> None:
    html = page_html(sample_frames, figures=[])
    [script] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert f"script-src &#39;sha256-{digest}&#39;;" in policy
    assert policy.startswith("default-src &#39;none&#39;;")
    assert html.index("Content-Security-Policy") < html.index("<style>")


def test_a_figure_brings_its_caption_and_its_table_folded(sample_frames: RunFrames) -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><path d="M0,0h9"/></svg>'
    table = {"trial": ["zero1", "zero2"], "peak, GiB": ["1.5", "-"], "note": ["", "<b>"]}
    empty: dict[str, list[str]] = {name: [] for name in table}
    figures = [
        Figure("a", "One.", "Read it so.", Drawing({}, lambda: svg, lambda: svg), table),
        Figure("b", "Two", "No data.", None, empty),
    ]
    page = parsed(page_html(sample_frames, figures=figures))
    first, second = page.findall(".//figure")
    assert words(first.find("figcaption")) == "Figure 1. One. Read it so."  # type: ignore[arg-type]
    assert rows(first) == [["zero1", "1.5", ""], ["zero2", "-", "<b>"]]
    assert [head.get("class") for head in first.findall(".//thead/tr/th")] == [None, "number", None]
    details = known(first.find("details"))
    assert details.get("open") is None
    assert words(second) == "Two. No data."
    assert [link.get("href") for link in page.findall(".//nav//a")][:2] == ["#a", "#b"]


def test_every_entry_of_the_contents_leads_somewhere(sample_frames: RunFrames) -> None:
    page = parsed(page_html(sample_frames))
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert {link.get("href", "").removeprefix("#") for link in page.findall(".//nav//a")} <= set(ids)
    for attribute in ("aria-labelledby", "aria-describedby", "data-source"):
        named = {element.get(attribute) for element in page.iter()} - {None}
        assert named <= set(ids), attribute


def test_a_long_table_scrolls_within_its_frame() -> None:
    short, long = (columns_grid("x", {"a": ["x"] * size}) for size in (MANY_ROWS, MANY_ROWS + 1))
    assert (short.is_long, long.is_long) == (False, True)


def test_two_runs_make_one_page(tmp_path: Path) -> None:
    for name in ("sample_20260102-030405", "sample_20260103-030405"):
        folder = tmp_path / name
        write_frames(folder, sample_trials()[:2], samples=False)
        for path in folder.rglob("*.json"):
            path.write_text(path.read_text().replace(RUN_ID, name))
    frames = run_frames([load_run(path) for path in sorted(tmp_path.iterdir())])
    page = parsed(page_html(frames, figures=[]))
    labels = [line[0] for line in rows(section(page, "trials"))]
    assert len(set(labels)) == len(labels) == 4
    assert [label[-4:] for label in labels] == [" @ A"] * 2 + [" @ B"] * 2
    assert "Runs: A is sample_20260102-030405, B is sample_20260103-030405" in page_html(frames, figures=[])
    assert "sample_20260102-030405, sample_20260103-030405" in words(page.find(".//details[@class='about']"))  # type: ignore[arg-type]
