"""What a batch script ends in, as far as it needs no cluster: its arguments, and what is typed afterwards."""

import json
from pathlib import Path

import pytest

from tests.launch.slurm.on_cluster import standin_trial
from tests.launch.slurm.standins import Standins
from tests.tools.laid_out import laid_out
from zerobench.common.vocabulary import Status
from zerobench.launch.run.lock import trial_locked
from zerobench.launch.slurm.job.__main__ import main
from zerobench.launch.slurm.jobs import tasks_text
from zerobench.records.folder import RunFolder
from zerobench.records.records import Start, TrialRecord
from zerobench.records.store import read_record

NAMES = ("over", "alive", "held", "not_begun")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Trials that were begun in jobs 41 and 42, without a record, and one that was not begun."""
    trials = [standin_trial(name) for name in NAMES]
    folder = laid_out(tmp_path / "a_run", trials)
    for trial, job in zip(trials, ("41_0", "42_0", "41_0"), strict=False):
        start = Start(trial_id=trial.trial_id, started_at_s=1.0, runner="process 7 on n1", job=job)
        folder.trial(trial.trial_id).start.write_text(start.model_dump_json())
    (folder.path / "tasks").write_text(tasks_text([[trial.trial_id for trial in trials]]))
    return folder


def ended(run: RunFolder) -> dict[str, Status]:
    """How trials ended, by the first part of their ids."""
    records = [read_record(path, TrialRecord) for path in run.trials.glob("*/record.json")]
    return {record.trial_id.partition("-")[0]: record.status for record in records}


def test_what_was_begun_and_whose_job_is_over_is_typed_and_nothing_else(
    run: RunFolder, slurm: Standins, capsys: pytest.CaptureFixture[str]
) -> None:
    states = {41: "NODE_FAIL", 42: "RUNNING"}
    jobs = [{"job_id": n, "array_job_id": n, "array_task_id": 0, "job_state": s} for n, s in states.items()]
    slurm.answer("squeue", f"cat <<'END'\n{json.dumps({'jobs': jobs})}\nEND")
    [held] = run.trials.glob("held-*")
    with trial_locked(run.trial(held.name)):
        assert main([str(run.path), "--finish"]) == 0
    assert ended(run) == {"over": Status.NODE_FAILURE}
    assert "over-zero1-n4" in capsys.readouterr().out


def test_a_torn_word_of_a_start_and_a_torn_spec_close_no_other_trial_out(run: RunFolder, slurm: Standins) -> None:
    slurm.answer("squeue", "exit 1")
    for folder in (run.trial(path.name) for path in run.trials.iterdir()):
        folder.start.write_text('{"trial_id": "x", "star')
        folder.spec.write_text("")
    assert main([str(run.path), "--finish"]) == 0
    assert set(ended(run).values()) == {Status.INTERRUPTED}


def test_while_slurm_does_not_answer_nothing_is_typed(run: RunFolder, slurm: Standins) -> None:
    slurm.answer("squeue", "exit 1")
    assert main([str(run.path), "--finish"]) == 0
    assert ended(run) == {}


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        ([], {}, "TASKS is missing"),
        (["tasks"], {"SLURM_ARRAY_TASK_ID": "1"}, "SLURM_ARRAY_TASK_ID: 1:"),
        (["no-such-tasks"], {}, "no-such-tasks: cannot be read"),
        (["--trial", "over"], {}, "SLURM_JOB_ID is not set"),
    ],
)
def test_a_mistake_is_one_line_in_the_jobs_log(
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    variables: dict[str, str],
    told: str,
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(run.path)
    assert main([str(run.path), *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("zerobench: ")
    assert told in said
    assert said.count("\n") == 1
