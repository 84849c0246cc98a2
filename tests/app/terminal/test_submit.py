"""`zerobench submit` as users meet it: what is said, what is written, and one line for each mistake."""

import json
from pathlib import Path

import pytest

from tests.app.terminal.conftest import Call
from tests.launch.slurm.run_folders import end
from tests.launch.slurm.standins import Standins, install
from tests.tools.refusals import refused
from zerobench.common.vocabulary import Status
from zerobench.launch.slurm.jobs import JobKind, read_submission, read_tasks
from zerobench.launch.slurm.options import kept_options
from zerobench.records.folder import RunFolder
from zerobench.records.store import load_run

SUBMIT = ["submit", "zero-stages", "--nodes", "2", "--gpus-per-node", "8"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standins:
    """Slurm's programs, played by small scripts."""
    standins = install(tmp_path / "slurm-programs")
    monkeypatch.setenv("PATH", f"{standins.folder}:/usr/bin:/bin")
    return standins


def only_run(folder: Path) -> RunFolder:
    [path] = (folder / "reports").iterdir()
    return RunFolder(path)


def test_a_sweep_becomes_a_run_folder_and_jobs(call: Call, slurm: Standins, tmp_path: Path) -> None:
    code, out, err = call(*SUBMIT, "--partition", "short", "--set", "timeout_s=60")
    assert (code, err) == (0, "")
    run = only_run(tmp_path)
    shown = f"reports/{run.path.name}"
    assert out.splitlines() == [
        "submitted 1-node: job 101",
        "submitted 2-nodes: job 102",
        "submitted report: job 103",
        f"Run: {shown}",
        f"watch with: zerobench status {shown}",
    ]
    opened = load_run(run.path)
    trials = [entry.trial_id for entry in opened.plan.trials]
    tasks = [task for name in ("1-node", "2-nodes") for task in read_tasks(run.slurm_tasks(name))]
    assert sorted(trial for task in tasks for trial in task) == sorted(trials)
    assert opened.pending() == trials
    assert {opened.spec(trial).num_nodes for trial in read_tasks(run.slurm_tasks("2-nodes"))[0]} == {2}
    assert "#SBATCH --partition=short" in run.slurm_script("2-nodes").read_text()


def test_predictions_join_measured_trials_in_one_submission(call: Call, slurm: Standins, tmp_path: Path) -> None:
    how = ["--set", "evidence=measured,formula", "--gpu", "h200", "--only", "strategy=zero3", "--cpu-partition", "cpu"]
    code, _, err = call(*SUBMIT, *how)
    assert (code, err) == (0, "")
    run = only_run(tmp_path)
    assert [job.kind for job in read_submission(run).jobs] == [JobKind.PREDICTIONS, JobKind.TRIALS, JobKind.REPORT]
    predictions = run.slurm_script("predictions").read_text()
    assert "#SBATCH --partition=cpu" in predictions
    assert "#SBATCH --gpus-per-node" not in predictions


def test_a_dry_run_says_what_would_be_asked_and_writes_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm here
    code, out, err = call(*SUBMIT, "--dry-run", "--trials-per-job", "4", "--set", "timeout_s=600")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "1-node   1 node, 1 task of 2 trials, 00:35:00 each, 0.6 node-hours",
        "2-nodes  2 nodes, 2 tasks of up to 4 of 8 trials, 00:55:00 each, 3.7 node-hours",
        "report   after them",
        "10 trials; 4.2 node-hours at most",
    ]
    assert list(tmp_path.iterdir()) == []


def test_every_line_of_a_dry_run_fits_the_terminal(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for width in (80, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        out = call(*SUBMIT, "--dry-run", "--trials-per-job", "3", "--set", "timeout_s=600", "--repeats", "20")[1]
        assert max(map(len, out.splitlines())) <= width
        assert "trials, " in out
    single = ["submit", "quickstart", "--only", "strategy=single", "--nodes", "1", "--gpus-per-node", "0"]
    assert call(*single, "--dry-run")[1].startswith("1-node  1 node, 1 task of 1 trial, ")


def test_a_second_submission_asks_only_for_what_is_missing_as_the_first_one_did(
    call: Call, slurm: Standins, tmp_path: Path
) -> None:
    call(*SUBMIT, "--only", "strategy=zero1,zero2", "--account", "mine", "--trials-per-job", "1")
    run = only_run(tmp_path)
    ids = [task[0] for task in read_tasks(run.slurm_tasks("2-nodes"))]
    for trial_id, status in zip(ids, [Status.COMPLETED, Status.CRASH], strict=False):
        run.trial(trial_id).path.mkdir(parents=True)
        end(run, trial_id, status)
    queued = {"array_job_id": 101, "array_task_id": 2, "job_state": "PENDING"}
    (slurm.folder / "queue").write_text(json.dumps({"jobs": [queued], "errors": []}))
    slurm.answer("squeue", f"cat '{slurm.folder}/queue'")
    code, out, err = call("submit", "--resume", run.path.name, "--trials-per-job", "2")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "submitted 2-nodes-2: job 103"
    assert read_tasks(run.slurm_tasks("2-nodes-2")) == [[ids[1], ids[3]]]
    assert "#SBATCH --account=mine\n" in run.slurm_script("2-nodes-2").read_text()
    assert kept_options(run)["trials_per_job"] == 2


def test_a_run_that_misses_nothing_is_left_alone(call: Call, slurm: Standins, tmp_path: Path) -> None:
    call(*SUBMIT, "--only", "strategy=zero1", "--trials-per-job", "2")
    run = only_run(tmp_path)
    queued = {"array_job_id": 101, "array_task_id": 0, "job_state": "RUNNING"}
    (slurm.folder / "queue").write_text(json.dumps({"jobs": [queued], "errors": []}))
    slurm.answer("squeue", f"cat '{slurm.folder}/queue'")
    assert call("submit", "--resume", str(run.path)) == (0, "no trials missing\n", "")
    assert len(read_submission(run).jobs) == 2


def test_nobody_submits_twice_what_may_still_be_queued(call: Call, slurm: Standins, tmp_path: Path) -> None:
    call(*SUBMIT, "--only", "strategy=zero1")
    slurm.answer("squeue", "exit 1")
    refused(call("submit", "--resume", only_run(tmp_path).path.name), "may still be queued, and squeue does not answer")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["submit"], "SWEEP is missing"),
        ([*SUBMIT, "--sbatch", "array=0-9"], "--sbatch: array: zerobench sets it itself; use --throttle"),
        ([*SUBMIT, "--partition", "nowhere"], "--partition: 'nowhere' is not a partition of this cluster"),
        ([*SUBMIT, "--resume", "x"], "--resume continues a run as planned"),
        ([*SUBMIT, "--local"], "--local: 8 trials take 2 or more nodes"),
        ([*SUBMIT, "--local", "--launcher", "srun"], "--launcher does not go with --local"),
        ([*SUBMIT, "--set", "num_nodes=3", "--only", "strategy=zero1"], "every trial is skipped"),
        ([*SUBMIT, "--account", "a\nb"], "--account: unprintable character"),
        ([*SUBMIT, "--reports", "a\\b"], "contains a backslash"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    call: Call, slurm: Standins, tmp_path: Path, arguments: list[str], told: str
) -> None:
    refused(call(*arguments), told)
    assert not (tmp_path / "reports").exists()
    assert slurm.calls("sbatch") == []


def test_without_slurm_one_line_says_what_needs_none(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(call(*SUBMIT), "Slurm does not answer (scontrol show config); --dry-run and --local need none")


@pytest.mark.parametrize("limit", ["1:00", "2:00"])
def test_jobs_too_short_for_any_trial_are_warned_of_by_the_partitions_limit(
    call: Call, slurm: Standins, limit: str
) -> None:
    (slurm.folder / "partitions").write_text(f"short|{limit}\nmain*|1-00:00:00\n")
    asked = [*SUBMIT, "--partition", "short", "--only", "strategy=zero1"]
    for more in ([], ["--dry-run"]):
        code, _, err = call(*asked, *more)
        assert code == 0
        assert err.count("\n") == err.count("warning: jobs of trials get 00:0") >= 1
        assert "another --partition" in err
    assert call(*asked, "--partition", "main", "--dry-run")[2] == ""


def test_jobs_too_short_for_any_trial_are_warned_of_by_the_limit_that_was_asked_for(
    call: Call, slurm: Standins
) -> None:
    _, _, err = call(*SUBMIT, "--only", "strategy=zero1", "--time", "2", "--dry-run")
    assert "warning: jobs of trials get 00:02:00" in err
    assert call(*SUBMIT, "--only", "strategy=zero1", "--time", "3", "--dry-run")[2] == ""
