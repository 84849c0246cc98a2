"""`zerobench status`: what it says of a run in 80 columns, and its exit status."""

import io
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.launch.slurm.run_folders import begin, end, job, make_run, submit
from tests.report.sample_run import completed_trial, spec, write_run
from tests.tools.refusals import refused
from zerobench.app.terminal.status import status_view
from zerobench.common.vocabulary import Status
from zerobench.launch.slurm.jobs import JobKind, Submission
from zerobench.launch.slurm.queue import JobStates
from zerobench.launch.slurm.tasks import TaskState
from zerobench.launch.slurm.watch.status import RunFacts, run_status
from zerobench.launch.slurm.watch.traces import read_traces
from zerobench.records.folder import RunFolder
from zerobench.records.store import Plan, load_run

Call = Callable[..., tuple[int, str, str]]
NOW_S = 1_800_000_000.0


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("COLUMNS", "80")


def view(run: RunFolder, states: JobStates | None, submission: Submission) -> list[str]:
    """The view of `run` in 80 columns, each line without its trailing spaces."""
    plan = Plan.model_validate_json(run.plan.read_bytes()).trials
    tasks = {"1-node": [["a", "b"], ["c", "d"], ["e"], ["f"]]}
    traces = read_traces(run, [entry.trial_id for entry in plan if entry.rule is None])
    status = run_status(
        RunFacts(plan=plan, traces=traces, now_s=NOW_S, jobs=submission.jobs, tasks=tasks, states=states)
    )
    screen = io.StringIO()
    Console(file=screen, width=80, highlight=False).print(status_view(run, submission, status, {}))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    return lines


def submission_of(run: RunFolder) -> Submission:
    jobs = [job("1-node", 42, 4), job("report", 43, 1, JobKind.REPORT)]
    return Submission(run_id=run.run_id, cluster="zb", jobs=jobs)


def test_a_run_on_a_cluster_is_told_in_80_columns(tmp_path: Path) -> None:
    run = make_run(tmp_path / "stages_20250101-120000", ["a", "b", "c", "d", "e", "f", "odd"], skipped=["odd"])
    end(run, "a", Status.COMPLETED)
    end(run, "b", Status.OUT_OF_DEVICE_MEMORY, "rank 3: asked 2.50 GiB, 1.10 GiB free")
    begin(run, "c", NOW_S - 2000, [NOW_S - 1000, NOW_S - 700])
    begin(run, "f", NOW_S - 900)
    states = {
        42: [
            TaskState(1, ("RUNNING",), start_s=NOW_S - 2100, end_s=NOW_S + 1500, restart_count=1),
            TaskState(2, ("PENDING",), "Resources", restart_count=0),
        ],
        43: [TaskState(None, ("PENDING",), "Dependency")],
    }
    assert view(run, states, submission_of(run)) == [
        "stages_20250101-120000: 7 trials, 1 completed, 1 failed, 1 skipped, 1 running, 2",
        "queued, 1 lost",
        "",
        "Jobs",
        "job     Slurm's id  nodes  tasks                                       time left",
        "─" * 80,
        "1-node          42      1  2 ended, 1 running, 1 pending; 1 restart  25 min 00 s",
        "report          43      1  1 pending                                           -",
        "",
        "Running",
        "trial  task  phase                  silent for",
        "─" * 46,
        "c      42_1  timed, step 3 of 9  11 min 40 s !",
        "! no progress for 10 min 00 s: it may hang; logs: trials/c",
        "",
        "Waiting",
        "job     trials  reason",
        "─" * 54,
        "1-node       1  behind earlier trials of the same task",
        "1-node       1  waiting for nodes (Resources)",
        "",
        "Failed: 1 out of device memory",
        "trial  how                   why",
        "─" * 66,
        "b      out of device memory  rank 3: asked 2.50 GiB, 1.10 GiB free",
        "logs: trials/b",
        "",
        "1 lost: started, without a record, and their job is over: f",
    ]


def test_names_and_reasons_that_do_not_fit_are_folded_never_cut(tmp_path: Path) -> None:
    name = "llama-2-70b_zero3_optimizer-cpu_parameters-nvme_gpus512_mbs16_seq131072_repeat-3"
    run = make_run(tmp_path / "run", [name])
    end(run, name, Status.CRASH, "rank 0: " + "x" * 200)
    lines = view(run, {}, Submission(run_id="run", cluster=None, jobs=[]))
    start = next(number for number, line in enumerate(lines) if line.startswith("llama"))
    rows = lines[start : next(number for number, line in enumerate(lines) if line.startswith("logs:"))]
    width = rows[0].index(" ")
    assert "".join(line[:width].strip() for line in rows) == name
    assert "".join(rows).count("x") == 200 + name.count("x")


def test_what_slurm_and_records_say_is_neither_markup_nor_steers_the_terminal(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["a", "b"])
    end(run, "a", Status.CRASH, "[red]no[/red] \x1b[2J gone")
    states = {42: [TaskState(0, ("[bold]PENDING",), "[link=x]why\x07")]}
    text = "\n".join(view(run, states, submission_of(run)))
    assert "[red]no[/red] \N{REPLACEMENT CHARACTER}[2J gone" in text
    assert not any(ord(character) < 32 and character != "\n" for character in text)


def test_long_lists_are_cut_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    trial_ids = [f"t{number}" for number in range(50)]
    run = make_run(tmp_path / "run", trial_ids)
    for trial_id in trial_ids[:30]:
        end(run, trial_id, Status.CRASH, "no")
    lines = view(run, {}, Submission(run_id="run", cluster=None, jobs=[]))
    assert "and 10 more" in lines
    assert "20 not started: never started, and in no job: t30, t31, t32 and 17 more" in lines


def test_an_ordinary_run_says_that_nothing_was_submitted(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path / "reports" / "stages_20250101-120000", ["a", "b"])
    end(run, "a", Status.COMPLETED)
    end(run, "b", Status.COMPLETED)
    assert call("status") == (0, "stages_20250101-120000: 2 trials, 2 completed\n", "")


def test_an_ordinary_run_that_was_left_says_how_to_go_on(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path / "reports" / "stages_20250101-120000", ["a", "b"])
    begin(run, "a", time.time() - 60)
    code, out, _ = call("status")
    assert code == 1
    assert "1 lost" in out
    assert "continue with: zerobench run --resume reports/stages_20250101-120000\n" in out


def test_what_to_type_next_is_one_line_quoted_for_a_shell(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path / "reports" / f"{'long ' * 20}name", ["a"])
    submit(run, job("1-node", 42, 1), tasks={"1-node": [["a"]]})
    end(run, "a", Status.CRASH, "no")
    code, out, _ = call("status")
    assert (code, out.splitlines()[-1]) == (1, f"continue with: zerobench submit --resume 'reports/{run.path.name}'")


@pytest.mark.parametrize(("jobs", "verb"), [([], "submit"), ([None], "submit --local"), ([42, None], "submit")])
def test_a_run_goes_on_the_way_it_was_begun(call: Call, tmp_path: Path, jobs: list[int | None], verb: str) -> None:
    run = make_run(tmp_path / "reports" / "stages_20250101-120000", ["a"])
    named = [job(f"1-node-{number}", job_id, 1) for number, job_id in enumerate(jobs)]
    submit(run, *named, tasks={one.name: [[]] for one in named})
    _, out, _ = call("status")
    assert out.splitlines()[-1] == f"continue with: zerobench {verb} --resume reports/stages_20250101-120000"


def test_a_silent_slurm_is_said_and_the_folder_shown(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path / "reports" / "stages_20250101-120000", ["a", "b", "c"])
    submit(run, job("1-node", 42, 3), tasks={"1-node": [["a"], ["b"], ["c"]]})
    end(run, "a", Status.COMPLETED)
    begin(run, "b", time.time() - 100, [time.time() - 2])
    code, out, _ = call("status", "stages_20250101-120000")
    assert code == 3
    assert "3 trials, 1 completed, 1 begun, 1 submitted" in out
    assert "! Slurm does not answer here" in out
    assert "Started, without a record" in out
    assert "timed, step 3 of 9" in out
    assert "go on with" not in out


def test_trials_have_the_names_that_other_tables_give_them(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "reports" / "stages_20250101-120000"
    run = write_run(path, [completed_trial(spec(strategy)) for strategy in ("zero2", "zero3")], samples=False)
    lost = next(trial for trial in load_run(path).plan.trials if "zero3" in trial.trial_id)
    run.trial(lost.trial_id).record.unlink()
    begin(run, lost.trial_id, time.time() - 60)
    _, out, _ = call("status")
    assert "their job is over: zero3\n" in out


def test_a_run_that_is_not_there_is_an_error_of_one_line(call: Call) -> None:
    refused(call("status", "nowhere", "--reports", "elsewhere"), "RUN: 'nowhere' is not a run folder")


def test_following_a_run_says_each_change_and_ends_with_it(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path / "reports" / "stages_20250101-120000", ["a"])
    submit(run, job("1-node", 42, 1), tasks={"1-node": [["a"]]})
    ending = threading.Timer(0.5, end, [run, "a", Status.CRASH, "rank 0 exited with 7"])
    ending.start()
    code, out, _ = call("status", "--follow", "1")
    ending.join()
    assert code == 1
    assert out.splitlines()[:2] == [
        "stages_20250101-120000: 1 trial, 1 submitted",
        "stages_20250101-120000: 1 trial, 1 failed",
    ]
    assert out.count("1 trial,") == 2
    assert "rank 0 exited with 7" in out


def test_following_more_often_than_each_second_is_refused(call: Call) -> None:
    refused(call("status", "--follow", "0.1"), "--follow")
