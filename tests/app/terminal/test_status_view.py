"""How a run's status looks, of made-up trials: what is marked, counted, ordered and left out, and what to type next."""

import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from tests.tools.rank_records import progress
from zerobench.app.terminal.status import MOST_ROWS, details, headline, next_step
from zerobench.launch.slurm.jobs import JobKind, Submission, SubmittedJob
from zerobench.launch.slurm.watch.status import JobStatus, RunStatus, Standing, TrialStatus
from zerobench.launch.slurm.watch.traces import TrialTrace
from zerobench.records.folder import RunFolder

ARRAY = SubmittedJob(
    name="1-node", kind=JobKind.TRIALS, job_id=42, num_tasks=4, num_nodes=1, time_limit_s=60, submitted_at_s=0.0
)


def lines_of(
    *trials: TrialStatus,
    jobs: tuple[JobStatus, ...] = (),
    slurm_answers: bool = True,
    names: dict[str, str] | None = None,
) -> list[str]:
    """What stands below the line of counts, in 80 columns."""
    status = RunStatus(trials, jobs, slurm_answers)
    submission = Submission(run_id="r", cluster="zb", jobs=[job.job for job in jobs])
    screen = io.StringIO()
    Console(file=screen, width=80, highlight=False).print(details(submission, status, names or {}))
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def running(name: str, silence_s: float | None, task: int = 1) -> TrialStatus:
    trace = TrialTrace(ranks=(progress(0, step_index=2),))
    return TrialStatus(name, Standing.RUNNING, trace, job=ARRAY, task_id=task, silence_s=silence_s)


@pytest.mark.parametrize(("silence_s", "shown", "is_marked"), [
    (None, "-", False), (0.4, "0 s", False), (59.4, "59 s", False), (59.5, "1 min 00 s", False),
    (599.0, "9 min 59 s", False), (600.0, "10 min 00 s !", True), (601.0, "10 min 01 s !", True),
])  # fmt: skip
def test_a_trial_that_is_silent_for_ten_minutes_is_marked(silence_s: float | None, shown: str, is_marked: bool) -> None:
    lines = lines_of(running("a", silence_s))
    [row] = [line for line in lines if line.startswith("a ")]
    assert row.split() == ["a", "42_1", "timed,", "step", "3", "of", "8", *shown.split()]
    hangs = [line for line in lines if "may hang" in line]
    assert hangs == ["! no progress for 10 min 00 s: it may hang; logs: trials/a"] * is_marked


def test_running_trials_are_listed_the_most_silent_first() -> None:
    lines = lines_of(running("a", 5.0), running("b", 700.0), running("c", None), running("d", 60.0))
    rows = [line.split()[0] for line in lines if " 42_1 " in line]
    assert rows == ["b", "d", "a", "c"]


def test_of_many_rows_twenty_are_shown_and_the_others_counted() -> None:
    shown = lines_of(*(running(f"t{number:02}", float(number)) for number in range(MOST_ROWS)))
    assert sum(" 42_1 " in line for line in shown) == MOST_ROWS == 20
    assert not any(line.startswith("and ") for line in shown)
    more = lines_of(*(running(f"t{number:02}", float(number)) for number in range(MOST_ROWS + 3)))
    assert sum(" 42_1 " in line for line in more) == 20
    assert "and 3 more" in more


def test_trials_without_a_record_are_not_said_to_run_where_nobody_knows() -> None:
    begun = TrialStatus("a", Standing.BEGUN)
    assert "Started, without a record" in lines_of(begun)
    assert "Running" in lines_of(begun, running("b", 1.0))
    assert lines_of(TrialStatus("a", Standing.COMPLETED)) == []


@pytest.mark.parametrize(("standing", "reason", "why"), [
    (Standing.QUEUED, "Resources", "waiting for nodes (Resources)"),
    (Standing.QUEUED, "SomethingNew", "SomethingNew"),
    (Standing.QUEUED, None, "behind earlier trials of the same task"),
    (Standing.SUBMITTED, None, "unknown"),
    (Standing.SUBMITTED, "Resources", "unknown"),
])  # fmt: skip
def test_waiting_trials_are_counted_by_job_with_why_in_words(standing: Standing, reason: str | None, why: str) -> None:
    waiting = [TrialStatus(name, standing, reason=reason, job=ARRAY) for name in "ab"]
    lines = lines_of(*waiting)
    assert " ".join(lines[-1].split()) == f"1-node 2 {why}"
    assert "Waiting" in lines
    assert lines_of(TrialStatus("a", standing, reason=reason)) == []  # in no job


def test_failed_trials_are_titled_by_how_most_of_them_ended() -> None:
    how = {"a": "timeout", "b": "out_of_device_memory", "c": "out_of_device_memory", "d": None}
    failed = [
        TrialStatus(name, Standing.FAILED, TrialTrace(status=status), "why it did") for name, status in how.items()
    ]
    lines = lines_of(*failed, names={"a": "zero1 mb4"})
    assert lines[1] == "Failed: 2 out of device memory, 1 timeout, 1 -"
    assert " ".join(lines[4].split()) == "zero1 mb4 timeout why it did"
    assert lines[-1] == "logs: trials/a, b, c and 1 more"


def test_what_nobody_will_do_is_named_by_kind() -> None:
    lines = lines_of(*(TrialStatus(name, Standing.LEFT_OVER) for name in "abcd"), TrialStatus("e", Standing.LOST))
    assert [line for line in lines if line] == [
        "1 lost: started, without a record, and their job is over: e",
        "4 left over: never started, and their jobs are over: a, b, c and 1 more",
    ]


def test_jobs_are_told_with_their_tasks_restarts_and_the_time_left() -> None:
    one = JobStatus(ARRAY, Counter({"running": 3, "ended": 1}), time_left_s=90.0, restarts=2)
    local = JobStatus(
        ARRAY.model_copy(update={"job_id": None, "num_nodes": 4}), Counter({"without Slurm": 1}), None, None
    )
    rows = [" ".join(line.split()) for line in lines_of(jobs=(one, local))[4:]]
    assert rows == [
        "1-node 42 1 3 running, 1 ended; 2 restarts 1 min 30 s",
        "1-node - 4 1 without Slurm -",
    ]


@pytest.mark.parametrize(("job_id", "answers", "standing", "said"), [
    (42, True, Standing.BEGUN, None),
    (42, False, Standing.COMPLETED, "! Slurm does not answer here: status from the run folder only."),
    (None, False, Standing.BEGUN, None),
])  # fmt: skip
def test_a_slurm_that_does_not_answer_is_said_where_the_run_is_its(
    job_id: int | None, answers: bool, standing: Standing, said: str | None
) -> None:
    job = JobStatus(ARRAY.model_copy(update={"job_id": job_id}), Counter({"unknown": 1}), None, None)
    lines = lines_of(TrialStatus("a", standing), jobs=(job,), slurm_answers=answers)
    assert [line for line in lines if "Slurm does not answer" in line] == ([] if said is None else [said])
    going = lines_of(TrialStatus("a", Standing.BEGUN), jobs=(job,), slurm_answers=False)
    assert ("Started trials may be running or lost" in " ".join(going)) is (job_id is not None)


def test_the_headline_counts_trials_by_where_they_stand_in_one_order() -> None:
    stands = (Standing.LOST, Standing.COMPLETED, Standing.COMPLETED, Standing.RUNNING)
    status = RunStatus([TrialStatus(str(n), one) for n, one in enumerate(stands)], (), True)
    assert headline(RunFolder(Path("stages_1")), status).plain == "stages_1: 4 trials, 2 completed, 1 running, 1 lost"


@pytest.mark.parametrize(("standings", "continues"), [
    ((Standing.COMPLETED, Standing.SKIPPED), False),
    ((Standing.FAILED,), True),
    ((Standing.FAILED, Standing.RUNNING), False),
    ((Standing.LOST, Standing.RUNNING), True),
    ((Standing.LEFT_OVER,), True),
    ((Standing.NOT_STARTED,), True),
    ((Standing.QUEUED,), False),
])  # fmt: skip
def test_what_to_type_is_said_where_waiting_helps_nobody(
    tmp_path: Path, standings: tuple[Standing, ...], continues: bool
) -> None:
    status = RunStatus([TrialStatus(str(n), one) for n, one in enumerate(standings)], (), True)
    assert (next_step(RunFolder(tmp_path), status) is not None) is continues


@pytest.mark.parametrize(("is_submitted", "job_ids", "verb"), [
    (False, (), "run"), (True, (), "submit"), (True, (None, None), "submit --local"), (True, (None, 42), "submit"),
])  # fmt: skip
def test_a_run_goes_on_as_it_was_begun(
    tmp_path: Path, is_submitted: bool, job_ids: tuple[int | None, ...], verb: str
) -> None:
    run = RunFolder(tmp_path / "a run")
    run.path.mkdir()
    if is_submitted:
        run.slurm.mkdir()
    jobs = [JobStatus(ARRAY.model_copy(update={"job_id": one}), Counter(), None, None) for one in job_ids]
    said = next_step(run, RunStatus([TrialStatus("a", Standing.FAILED)], jobs, True))
    assert said is not None
    assert said.startswith(f"continue with: zerobench {verb} --resume '")
    assert said.endswith("a run'")
