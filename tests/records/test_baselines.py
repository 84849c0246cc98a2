"""Baselines: copies of runs by a name, small enough to commit, which take the place of earlier ones whole."""

from pathlib import Path

import pytest

from tests.report.sample_run import completed_trial, spec, write_run
from zerobench.common.errors import UserError
from zerobench.records.baselines import baselines, find_baseline, set_baseline
from zerobench.records.store import load_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one trial with what a run leaves beside its records."""
    trials = [completed_trial(spec("zero1", gpus_per_node=1))]
    path = write_run(tmp_path / "reports" / "sample", trials, samples=False).path
    for name in ("a.log", "trials.csv", "nvml.parquet", "report.html", ".lock", "checkpoints/step_1", "swap/x"):
        file = path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
    return path


def test_a_baseline_is_what_gates_read_of_the_run_and_no_more(run: Path, tmp_path: Path) -> None:
    kept = set_baseline("main", run, tmp_path / "reports")
    assert kept == tmp_path / "reports" / "baselines" / "main"
    assert [trial.record.trial_id for trial in load_run(kept).trials()] == [
        trial.record.trial_id for trial in load_run(run).trials()
    ]
    names = {path.name for path in kept.rglob("*")}
    left_out = {"a.log", "trials.csv", "nvml.parquet", "report.html", ".lock", "checkpoints", "swap"}
    assert not names & left_out
    assert (run / "a.log").exists()


def test_an_earlier_one_of_the_name_is_replaced_whole(run: Path, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    kept = set_baseline("main", run, reports)
    (kept / "old").write_text("x")
    set_baseline("main", run, reports)
    assert not (kept / "old").exists()
    assert [path.name for path in (reports / "baselines").iterdir()] == ["main"]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "\u00e4", "a\n"])
def test_a_name_that_is_no_folders_is_refused(name: str, run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^NAME: "):
        set_baseline(name, run, tmp_path / "reports")


@pytest.mark.parametrize("name", ["main", "v1.2", "-x", "_", "2026-11"])
def test_letters_digits_dots_dashes_and_underscores_are_names(name: str, run: Path, tmp_path: Path) -> None:
    assert set_baseline(name, run, tmp_path / "reports").name == name


def test_a_run_of_which_nothing_has_ended_is_no_baseline(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", [], samples=False).path
    with pytest.raises(UserError, match="no trial has ended yet"):
        set_baseline("main", empty, tmp_path / "reports")
    assert baselines(tmp_path / "reports") == {}


def test_baselines_are_found_by_name_and_what_is_hidden_is_none(run: Path, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    with pytest.raises(UserError, match=r"no baseline under .* yet; keep one with: zerobench baseline set main RUN"):
        find_baseline("main", reports)
    for name in ("two", "one"):
        set_baseline(name, run, reports)
    (reports / "baselines" / ".half").mkdir()
    assert list(baselines(reports)) == ["one", "two"]
    assert find_baseline("two", reports) == reports / "baselines" / "two"
    with pytest.raises(UserError, match="--against: 'thre' is not known"):
        find_baseline("thre", reports)
