"""A run kept by a name is what later runs are held against, whatever becomes of the run itself."""

import shutil
from pathlib import Path

import pytest

from tests.app.terminal.conftest import Call
from tests.report.figures.compare.runs import BASE_S, SLOWER_S, lay_out, repeats
from tests.report.sample_run import spec
from tests.tools.refusals import refused

SMALL = spec("zero1", gpus_per_node=1)
GATE = ("--fail-on", "memory:2%,speed:5%")


@pytest.fixture
def kept(call: Call, tmp_path: Path) -> Call:
    """Runs a command where the run before is the baseline main, and is gone; same and slower are there."""
    reports = tmp_path / "reports"
    before = lay_out(reports, "before", repeats(SMALL, BASE_S))
    lay_out(reports, "same", repeats(SMALL, tuple(reversed(BASE_S))))
    lay_out(reports, "slower", repeats(SMALL, SLOWER_S))
    assert call("baseline", "set", "main", "before") == (0, "main: before, in reports/baselines/main\n", "")
    shutil.rmtree(before)
    return call


def test_a_run_is_held_against_the_baseline(kept: Call) -> None:
    assert kept("compare", "same", "--against", "main", *GATE)[0] == 0
    assert kept("compare", "--against", "main", "--fail-on", "memory:2%")[0] == 0, "the newest run of its sweep"
    code, out, _ = kept("compare", "slower", "--against", "main", *GATE)
    assert code == 1
    assert "BASE: run before. NEW: run slower." in " ".join(out.split())


def test_the_newest_run_of_the_baselines_sweep_is_held_against_it_and_no_newer_run_of_another(
    kept: Call, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    lay_out(reports, "sample_20990101-000000", repeats(SMALL, BASE_S))
    other = lay_out(reports, "plan_20990102-000000", repeats(spec("zero3", gpus_per_node=1), BASE_S))
    (other / "sweep.yaml").write_text("name: plan\n")
    code, out, _ = kept("compare", "--against", "main", *GATE)
    assert code == 0
    assert "NEW: run sample_20990101-000000." in " ".join(out.split())


def test_without_a_run_of_the_baselines_sweep_the_gate_says_which_is_missing(kept: Call, tmp_path: Path) -> None:
    for run in (tmp_path / "reports").glob("*/sweep.yaml"):
        run.write_text("name: other\n")
    refused(kept("compare", "--against", "main", *GATE), "no run of sample under reports")


def test_a_baseline_is_no_run_of_its_own_and_is_replaced_by_the_next(kept: Call) -> None:
    assert kept("show", "main")[0] == 2
    assert kept("baseline", "set", "main", "slower")[0] == 0
    assert kept("compare", "slower", "--against", "main", *GATE)[0] == 0
    assert kept("baseline") == (0, "main: slower, in reports/baselines/main\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "same", "--against", "mian"], "did you mean 'main'"),
        (["compare", "same", "slower", "--against", "main"], "give NEW only"),
        (["compare", "same"], "NEW is missing"),
        (["baseline", "set"], "NAME is missing"),
        (["baseline", "set", "../main", "same"], "NAME: '../main'"),
        (["baseline", "sett", "main"], "did you mean 'set'"),
        (["baseline", "set", "main", "before"], "'before' is not a run folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(kept: Call, arguments: list[str], words: str) -> None:
    refused(kept(*arguments), words)
