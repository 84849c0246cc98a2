"""Jobs handed to Slurm: what is written down when, and what a second submission still asks for."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.slurm.run_folders import end
from tests.launch.slurm.standins import Standins
from tests.tools.laid_out import laid_out
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.slurm.jobs import JobKind, read_submission, read_tasks
from zerobench.launch.slurm.options import SubmitOptions
from zerobench.launch.slurm.submit.grouping import JobArray
from zerobench.launch.slurm.submit.limits import Limits
from zerobench.launch.slurm.submit.submission import array_names, missing, sbatch_environment, submit
from zerobench.launch.slurm.tasks import TaskState
from zerobench.records.folder import RunFolder
from zerobench.records.store import load_run

OPTIONS = SubmitOptions(gpus_per_node=0)
IDS = [f"llama-20m-single-n1-{letter * 8}-r0" for letter in "abcdef"]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    path = tmp_path / "reports" / "stages_20260101-120000"
    path.mkdir(parents=True)
    return RunFolder(path)


def arrays(*tasks: list[str], nodes: int = 1) -> list[JobArray]:
    return [JobArray(JobKind.TRIALS, nodes, [task], 600) for task in tasks]


def repeats(run: RunFolder, count: int) -> list[str]:
    """The run is laid out with so many repeats of one trial; their ids."""
    trial = TrialSpec(model=resolve_model("llama-20m"), strategy="single")
    trials = [trial.model_copy(update={"repeat": number}) for number in range(count)]
    laid_out(run.path, trials, {"name": "stages"})
    return [one.trial_id for one in trials]


def test_arrays_are_submitted_and_the_report_follows_all_of_them(slurm: Standins, run: RunFolder) -> None:
    jobs = list(submit(run, [*arrays(IDS[:2]), *arrays(IDS[2:3], nodes=2)], OPTIONS, Limits(cluster="zb")))
    assert [(job.name, job.job_id, job.num_nodes, job.kind) for job in jobs] == [
        ("1-node", 101, 1, JobKind.TRIALS),
        ("2-nodes", 102, 2, JobKind.TRIALS),
        ("report", 103, 1, JobKind.REPORT),
    ]
    assert read_submission(run).jobs == jobs
    assert read_submission(run).cluster == "zb"
    assert slurm.calls("sbatch") == [f"--parsable {run.slurm_script(job.name)}" for job in jobs]
    assert "#SBATCH --dependency=afterany:101:102\n" in run.slurm_script("report").read_text()
    assert read_tasks(run.slurm_tasks("1-node")) == [IDS[:2]]
    assert run.slurm_logs.is_dir()


def test_a_job_that_slurm_refuses_leaves_those_before_it_written_down(slurm: Standins, run: RunFolder) -> None:
    slurm.take_jobs(refuse="2-nodes")
    told = r"^sbatch: error: no such account; continue with: zerobench submit --resume .*stages_20260101-120000$"
    with pytest.raises(UserError, match=told):
        list(submit(run, [*arrays(IDS[:1]), *arrays(IDS[1:2], nodes=2)], OPTIONS, Limits()))
    assert [job.name for job in read_submission(run).jobs] == ["1-node"]
    assert array_names(run, arrays(IDS[:1], nodes=2)) == ["2-nodes"]


def test_what_slurm_took_is_written_down_before_the_next_job_is_asked_for(slurm: Standins, run: RunFolder) -> None:
    submitting = submit(run, [*arrays(IDS[:1]), *arrays(IDS[1:2], nodes=2)], OPTIONS, Limits())
    next(submitting)
    on_disk = json.loads(run.submission.read_text())
    assert [job["job_id"] for job in on_disk["jobs"]] == [101]
    assert len(slurm.calls("sbatch")) == 1


SUBMIT = """
import signal
import sys
from pathlib import Path
from zerobench.records.folder import RunFolder
from zerobench.launch.slurm.submit.grouping import JobArray
from zerobench.launch.slurm.jobs import JobKind
from zerobench.launch.slurm.submit.limits import Limits
from zerobench.launch.slurm.options import SubmitOptions
from zerobench.launch.slurm.submit.submission import submit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored for what it starts
list(submit(RunFolder(Path(sys.argv[1])), [JobArray(JobKind.TRIALS, 1, [["a"]], 600)], SubmitOptions(), Limits()))
"""


def test_who_stops_us_while_slurm_takes_a_job_still_finds_it_written_down(slurm: Standins, run: RunFolder) -> None:
    slurm.answer("sbatch", f"kill -INT $PPID; sleep 0.3; touch '{slurm.folder}/done'; echo 7")
    ended = subprocess.run([sys.executable, "-c", SUBMIT, str(run.path)], capture_output=True, timeout=60, check=False)
    assert ended.returncode in {-signal.SIGINT, 1}
    assert b"KeyboardInterrupt" in ended.stderr
    assert [job.job_id for job in read_submission(run).jobs] == [7]


def test_a_name_is_never_used_again(slurm: Standins, run: RunFolder) -> None:
    list(submit(run, [*arrays(IDS[:1]), *arrays(IDS[1:2])], OPTIONS, Limits()))
    list(submit(run, arrays(IDS[2:3]), OPTIONS, Limits()))
    names = [job.name for job in read_submission(run).jobs]
    assert names == ["1-node", "1-node-2", "report", "1-node-3", "report-2"]
    assert read_tasks(run.slurm_tasks("1-node")) == [IDS[:1]]
    run.slurm_script("4-nodes").write_text("left by a submission that was killed")
    assert array_names(run, arrays(IDS[:1], nodes=4)) == ["4-nodes-2"]


def test_a_later_report_waits_for_what_was_submitted_before_too(slurm: Standins, run: RunFolder) -> None:
    list(submit(run, arrays(IDS[:1]), OPTIONS, Limits()))
    list(submit(run, arrays(IDS[1:2]), OPTIONS, Limits()))
    assert "--dependency=afterany:101:103\n" in run.slurm_script("report-2").read_text()


def test_only_what_did_not_complete_and_no_job_will_come_to_is_missing(slurm: Standins, run: RunFolder) -> None:
    ids = repeats(run, 6)
    list(submit(run, [JobArray(JobKind.TRIALS, 1, [ids[:2], ids[2:4], ids[4:]], 600)], OPTIONS, Limits()))
    end(run, ids[0], Status.COMPLETED)
    end(run, ids[1], Status.CRASH)
    opened = load_run(run.path)
    over, waits = TaskState(0, ("FAILED",)), TaskState(1, ("PENDING",))
    runs = TaskState(2, ("RUNNING", "COMPLETING"))
    assert missing(opened, {101: [over, waits, runs]}) == [ids[1]]
    assert missing(opened, {101: [over, waits], 102: []}) == [ids[1], *ids[4:]]
    assert missing(opened, {}) == ids[1:]
    assert missing(opened, {101: [TaskState(None, ("RUNNING",))]}) == []


def test_a_job_that_is_no_array_will_come_to_all_of_its_trials(slurm: Standins, run: RunFolder) -> None:
    ids = repeats(run, 2)
    list(submit(run, [JobArray(JobKind.TRIALS, 1, [ids], 600)], OPTIONS, Limits()))
    assert missing(load_run(run.path), {101: [TaskState(None, ("PENDING",))]}) == []


def test_variables_of_the_users_shell_do_not_win_over_the_script_and_others_stay() -> None:
    shell = {
        "SBATCH_PARTITION": "other",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_ARRAY_INX": "0-9",
        "SBATCH_MEM_PER_NODE": "1G",
        "SBATCH_ACCOUNT": "mine",
        "SLURM_NTASKS": "8",
        "SLURM_CONF": "/etc/slurm.conf",
        "PATH": "/bin",
    }
    kept = sbatch_environment(shell, ["partition", "time", "array", "mem"])
    assert kept == {"SBATCH_ACCOUNT": "mine", "SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}


def test_sbatch_is_called_without_the_variables_that_its_script_answers(
    slurm: Standins, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    list(submit(run, arrays(IDS[:1]), OPTIONS, Limits()))
    environment = (slurm.folder / "environment").read_text().splitlines()
    assert "SBATCH_ACCOUNT=mine" in environment
    assert not any(line.startswith("SBATCH_TIMELIMIT") for line in environment)


def test_nothing_of_the_environment_is_written_down(
    slurm: Standins, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "hush-4711")
    list(submit(run, arrays(IDS[:1]), OPTIONS, Limits()))
    texts = [path.read_text() for path in run.slurm.rglob("*") if path.is_file()]
    assert len(texts) == 4
    assert not any("hush-4711" in text for text in texts)


def test_without_sbatch_the_error_is_one_line(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(UserError, match="sbatch: No such file or directory; --local"):
        list(submit(run, arrays(IDS[:1]), OPTIONS, Limits()))
    assert read_submission(run).jobs == []
