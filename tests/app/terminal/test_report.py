"""`zerobench report` as users meet it: files beside the run, several formats, mistakes in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.terminal.conftest import Call
from tests.report.sample_run import RUN_ID, cpu_trials, write_run
from tests.tools.refusals import refused


@pytest.fixture
def report(call: Call, tmp_path: Path) -> Call:
    """Runs `zerobench report` where a folder `reports` holds one run."""
    write_run(tmp_path / "reports" / RUN_ID, cpu_trials()[:2], samples=False)
    return partial(call, "report")


def test_the_newest_run_becomes_a_page_beside_its_tables(report: Call, tmp_path: Path) -> None:
    code, out, err = report()
    path = Path("reports") / RUN_ID / "report.html"
    assert (code, out, err) == (0, f"{path}\n", "")
    assert (tmp_path / path).read_text().startswith("<!doctype html>")


def test_a_page_is_drawn_when_no_trials_figures_are_held_any_more(
    report: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gc

    import vl_convert

    from zerobench.report.figures.trial import TrialFigures

    def figures() -> set[int]:
        return {id(thing) for thing in gc.get_objects() if isinstance(thing, TrialFigures)}

    before, held, draw = figures(), [], vl_convert.vegalite_to_svg  # those of other tests live on

    def count(*specification: Any, **options: Any) -> str:
        held.append(len(figures() - before))
        return str(draw(*specification, **options))

    monkeypatch.setattr(vl_convert, "vegalite_to_svg", count)
    assert report()[0] == 0
    assert len(held) > 2
    assert set(held) == {0}


def test_several_formats_are_written_at_once(report: Call) -> None:
    code, out, _ = report(RUN_ID, "--json", "--csv")
    folder = Path("reports") / RUN_ID
    assert (code, out.splitlines()) == (0, [str(folder / "report_csv"), str(folder / "report.json")])
    assert json.loads((folder / "report.json").read_text())["runs"][0]["run_id"] == RUN_ID
    assert (folder / "report_csv" / "memory.csv").stat().st_size > 1000


def test_a_path_may_be_named_and_a_dash_prints(report: Call, tmp_path: Path) -> None:
    assert report("--json", "--out", "here.json")[:2] == (0, "here.json\n")
    code, out, _ = report("--json", "--out", "-")
    assert code == 0
    assert out == (tmp_path / "here.json").read_text()


def test_markdown_is_kept_beside_the_runs_under_a_name_that_says_what_it_is(report: Call) -> None:
    code, out, err = report("--markdown")
    assert (code, err) == (0, "")
    path = Path(out.strip())
    assert path.parent == Path("reports")
    assert path.suffix == ".md"
    assert path.read_text().startswith("#")


def test_the_markdown_of_a_second_run_of_the_day_leaves_the_first_ones(report: Call, tmp_path: Path) -> None:
    first = Path(report("--markdown")[1].strip())
    kept, other = first.read_text(), RUN_ID.replace("030405", "040506")
    write_run(tmp_path / "reports" / other, cpu_trials()[:2], samples=False)
    for path in (tmp_path / "reports" / other).rglob("*.json"):
        path.write_text(path.read_text().replace(RUN_ID, other))
    code, out, _ = report(other, "--markdown")
    assert (code, out) == (0, f"reports/{other}.md\n")
    assert other in Path(out.strip()).read_text()
    assert first.read_text() == kept
    assert report("--csv")[1].startswith(f"reports/{other}/"), "a file beside the runs is taken for none"


def test_several_runs_make_one_report_and_a_run_named_twice_counts_once(report: Call, tmp_path: Path) -> None:
    other = "sample_20260103-030405"
    write_run(tmp_path / "reports" / other, cpu_trials()[:2], samples=False)
    for path in (tmp_path / "reports" / other).rglob("*.json"):
        path.write_text(path.read_text().replace(RUN_ID, other))
    code, out, _ = report(RUN_ID, other, RUN_ID, "--json")
    assert (code, out) == (0, f"reports/{other}/report_of_2_runs.json\n")
    runs = json.loads(Path(out.strip()).read_text())["runs"]
    assert [run["run_id"] for run in runs] == [RUN_ID, other]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "RUN: 'nonsense' is not a run folder"),
        (["--html", "--json", "--out", "x"], "--out: x: one file takes one format, not --html, --json"),
        (["--csv", "--out", "-"], "--out: '-': --csv writes several tables; give a folder"),
        (["--json", "--out", "no/such/folder/x.json"], "--out: no/such/folder/x.json: cannot be written: No such file"),
    ],
)
def test_a_mistake_is_one_line(report: Call, arguments: list[str], complaint: str) -> None:
    refused(report(*arguments), complaint)


def test_a_run_of_which_nothing_has_ended_says_so(report: Call, tmp_path: Path) -> None:
    for path in (tmp_path / "reports" / RUN_ID / "trials").rglob("record.json"):
        path.unlink()
    assert "no trial has ended yet" in report()[2]


def test_a_page_and_json_are_written_without_training_frameworks_and_without_libraries_of_frames(
    report: Call, tmp_path: Path
) -> None:
    code = (
        "import sys; from zerobench.app.terminal.report import ReportRequest, write_reports; from pathlib import Path\n"
        f"reports = Path({str(tmp_path / 'reports')!r})\n"
        "def loaded(*formats):\n"
        "    assert len(list(write_reports(ReportRequest([], formats, None, reports)))) == len(formats)\n"
        "    names = {'torch', 'deepspeed', 'transformers', 'zerobench.rank.loop', 'pandas', 'pyarrow'}\n"
        "    print(sorted(names & set(sys.modules)))\n"
        "loaded('html', 'json', 'markdown'); loaded('csv')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("[]\n['pandas', 'pyarrow']\n", 0), done.stderr


@pytest.mark.parametrize(("module", "package"), [("altair", "altair"), ("vl_convert", "vl-convert-python")])
def test_without_the_libraries_of_the_page_one_line_says_how_to_get_them_and_all_else_works(
    report: Call, monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    code, out, err = report()
    assert (code, out) == (2, "")
    assert re.fullmatch(
        rf"zerobench: --html: {package} .*; install it with: python -m pip install 'zerobench\[report\]'\n", err
    )
    assert report("--markdown", "--json")[0] == 0
