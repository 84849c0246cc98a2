"""`zerobench compare` as CI meets it: tables, a file for the pull request, and an exit status that means something."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.app.terminal.conftest import Call
from tests.report.figures.compare.runs import BASE_S, SLOWER_S, lay_out, repeats
from tests.report.sample_run import completed_trial, spec
from tests.tools.refusals import refused

SMALL = spec("zero1", gpus_per_node=1)


@pytest.fixture
def compare(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs `zerobench compare` where the runs before, same, slower and other lie under reports."""
    monkeypatch.setenv("COLUMNS", "100")
    reports = tmp_path / "reports"
    lay_out(reports, "before", repeats(SMALL, BASE_S))
    lay_out(reports, "same", repeats(SMALL, tuple(reversed(BASE_S))))
    lay_out(reports, "slower", repeats(SMALL, SLOWER_S))
    lay_out(reports, "once", [completed_trial(SMALL)])
    lay_out(reports, "other", [completed_trial(spec("zero2", gpus_per_node=1))])
    return partial(call, "compare")


def test_two_runs_are_shown_side_by_side_and_written_for_a_pull_request(compare: Call, tmp_path: Path) -> None:
    code, out, err = compare("before", "reports/slower", "--markdown", "pr.md")
    assert (code, err) == (0, "")
    assert "BASE: run before. NEW: run slower." in out
    row = next(line.split() for line in out.splitlines() if line.startswith("zero1  4+4"))
    assert row[-1] == "slower"
    assert f"| {' | '.join(row)} |" in (tmp_path / "pr.md").read_text()


@pytest.mark.parametrize(
    ("new", "limits", "code"),
    [
        ("same", "memory:2%,speed:5%", 0),
        ("slower", "memory:2%", 0),
        ("slower", "memory:2%,speed:5%", 1),
        ("slower", "speed:20%", 0),
    ],
)
def test_the_exit_status_is_1_where_a_limit_is_exceeded(compare: Call, new: str, limits: str, code: int) -> None:
    found, out, err = compare("before", new, "--fail-on", limits)
    assert (found, err) == (code, "")
    assert ("speed:5%: FAILED, 1 trial judged" in out) == (code == 1)


def test_a_log_opens_with_the_verdict_and_the_worst_line(compare: Call) -> None:
    _, out, _ = compare("before", "slower", "--fail-on", "speed:5%")
    title, verdict, *_ = out.splitlines()
    assert title == "Gate"
    assert verdict.startswith("- FAILED speed:5%: zero1, ")
    _, out, _ = compare("before", "same")
    assert out.splitlines()[:2] == ["Summary", "No peak grew"]


def test_a_screen_ends_with_what_it_comes_to(compare: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "zerobench.app.terminal.compare.sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True))
    )
    _, out, _ = compare("before", "same")
    assert out.startswith("BASE and NEW")
    assert out.splitlines()[-4:-1] == ["Summary", "No peak grew", ""]
    _, out, _ = compare("before", "slower", "--fail-on", "speed:5%")
    assert out.startswith("BASE and NEW")
    assert out.index("Speed, ") < out.index("Gate\n- FAILED speed:5%: zero1, ")


def test_a_gate_that_can_never_fire_is_exit_status_2_after_the_tables(compare: Call) -> None:
    code, out, err = compare("before", "once", "--fail-on", "speed:5%")
    assert code == 2
    assert "speed:5%: CANNOT FIRE" in out
    assert err.startswith("zerobench: --fail-on: speed:5%: cannot be checked on these runs: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["before"], "NEW"),
        (["before", "befor"], "did you mean 'before'"),
        (["before", "other"], "before and other have no common trial"),
        (["before", "same", "--fail-on", "spede:5%"], "did you mean 'speed'"),
        (["before", "same", "--markdown", "no/such/folder.md"], "--markdown: no/such/folder.md"),
        (["before", "same", "--html", "no/such/page.html"], "--html: no/such/page.html"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(compare: Call, arguments: list[str], words: str) -> None:
    refused(compare(*arguments), words)


def test_the_page_is_written_beside_the_tables_and_has_what_markdown_has(compare: Call, tmp_path: Path) -> None:
    files = ["--html", "page.html", "--markdown", "pr.md"]
    code, out, err = compare("before", "slower", "--fail-on", "memory:2%,speed:5%", *files)
    assert (code, err) == (1, "")
    page = (tmp_path / "page.html").read_text()
    assert "FAILED speed:5%: zero1, a step takes" in page
    for title in ("Gate", "BASE and NEW", "Memory at the peak of a steady step and of start-up, GiB"):
        assert f">{title}</h2>" in page
        assert title in (tmp_path / "pr.md").read_text()
    assert out.count("FAILED speed:5%") == 1
