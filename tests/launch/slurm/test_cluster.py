"""Runs on a real Slurm cluster: what `zerobench submit` starts there, and what is left when Slurm ends it early.

The daemons are real and the nodes pretended (cluster.py). Every scenario is played at the same time as the others
(scenarios.py), since most of each is waiting; the tests look at what it left.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launch.slurm.cluster import Cluster, missing_programs
from tests.launch.slurm.scenarios import HOSTILE, MAX_ARRAY_SIZE, NUM_NODES, PARTITIONS, SCENARIOS, Played, Swept
from tests.tools.known import known
from zerobench.common.vocabulary import Status
from zerobench.launch.slurm.jobs import read_submission, read_tasks
from zerobench.records.store import Run, Trial, load_run

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_programs()), reason=f"Slurm is not installed: {', '.join(missing_programs())}"),
]

Running = Mapping[str, "Future[Played | Swept]"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of this module's own, whose programs everything here talks to; nothing of it is left behind."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), NUM_NODES, PARTITIONS, MAX_ARRAY_SIZE)
    with pytest.MonkeyPatch.context() as patch, _ended_in_order():
        patch.setenv("SLURM_CONF", str(cluster.conf))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=":")
        try:
            cluster.start()
            yield cluster
        finally:
            left = cluster.stop()
    assert left == [], "processes of the cluster outlived it"


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let a session that is asked to terminate end its cluster first: job steps outlive everybody else."""
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", 143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def running(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Running]:
    """Every scenario that a test of this session asks for, at the same time."""
    reports = tmp_path_factory.mktemp("reports")
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    with ThreadPoolExecutor(len(SCENARIOS)) as threads:
        yield {name: threads.submit(play, cluster, reports) for name, play in SCENARIOS.items() if name in asked}
        cluster.gave_up = True  # a scenario that nobody waits for any more ends too
        cluster.end_jobs()


def _scenario(name: str) -> Callable[..., object]:
    @pytest.fixture(scope="module", name=name)
    def play(running: Running) -> Played | Swept:
        return running[name].result()

    return play


requeued = _scenario("requeued")
killed_and_requeued = _scenario("killed_and_requeued")
preempted_with_grace = _scenario("preempted_with_grace")
preempted_at_once = _scenario("preempted_at_once")
time_limit = _scenario("time_limit")
node_down = _scenario("node_down")
failing_rank = _scenario("failing_rank")
cancelled = _scenario("cancelled")
runner_killed = _scenario("runner_killed")
hanging = _scenario("hanging")
watched = _scenario("watched")
many_tasks = _scenario("many_tasks")
by_hand = _scenario("by_hand")
hostile = _scenario("hostile")
stage_by_srun = _scenario("stage_by_srun")
stage_by_deepspeed = _scenario("stage_by_deepspeed")


def assert_done_by_the_second_start(played: Played, interrupted_as: Status) -> None:
    """The trial that had ended is as it was, the one in flight is set aside, typed, and all are complete now."""
    run, job = played.of, played.of.task
    for name, text in played.seen.items():
        assert (run.folder("first").path / name).read_text() == text, name
    assert [run.record(name).status for name in run.trials] == [Status.COMPLETED] * 3
    assert [run.record(name).job for name in run.trials] == [job, f"{job}.2", f"{job}.2"]
    aside = run.aside_record("second")
    assert (aside.status, aside.job, len(aside.nodes)) == (interrupted_as, job, 2)
    assert run.aside("first") == run.aside("third") == []


def test_a_job_that_is_requeued_does_only_what_is_missing(requeued: Played) -> None:
    assert_done_by_the_second_start(requeued, Status.INTERRUPTED)
    assert requeued.of.aside_record("second").reason == f"job {requeued.of.task} was requeued"


def test_a_requeued_job_says_how_a_trial_ended_whose_runner_was_killed(killed_and_requeued: Played) -> None:
    assert_done_by_the_second_start(killed_and_requeued, Status.INTERRUPTED)
    aside = killed_and_requeued.of.aside_record("second")
    assert aside.reason == f"job {killed_and_requeued.of.task} was requeued"
    assert "its runner ended before writing this record" in aside.notes[0]


def test_a_job_preempted_with_grace_is_requeued_and_completed(preempted_with_grace: Played) -> None:
    assert_done_by_the_second_start(preempted_with_grace, Status.PREEMPTED)


def test_a_job_preempted_at_once_is_requeued_and_completed(preempted_at_once: Played) -> None:
    assert_done_by_the_second_start(preempted_at_once, Status.PREEMPTED)


def test_a_trial_that_loses_a_node_is_typed_and_done_again(node_down: Played) -> None:
    assert_done_by_the_second_start(node_down, Status.NODE_FAILURE)
    assert node_down.of.aside_record("second").reason == f"job {node_down.of.task} lost a node: n14"


def test_the_time_limit_types_the_trial_in_flight_and_resume_submits_only_what_is_missing(time_limit: Played) -> None:
    run = time_limit.of
    assert (time_limit.seen["missing"], time_limit.seen["status"]) == ("third", "timeout")
    assert time_limit.said["status"].exit_code == 1
    assert time_limit.said["resume"].exit_code == 0, time_limit.said["resume"].output
    assert time_limit.seen["tasks"].split() == [run.folder(name).path.name for name in ("second", "third")]
    assert [run.record(name).status for name in run.trials] == [Status.COMPLETED] * 3
    assert run.record("first").job == f"{run.job_ids[0]}_0"
    assert run.record("third").job == f"{run.job_ids[1]}_0"
    aside = run.aside_record("second")
    assert (aside.status, aside.job) == (Status.TIMEOUT, run.task)
    assert aside.reason == f"job {run.task} reached its time limit before the trial was done"


def test_a_rank_that_fails_on_the_second_node_ends_the_others_and_the_next_trial_goes_on(failing_rank: Played) -> None:
    first, second = failing_rank.of.record("first"), failing_rank.of.record("second")
    assert (first.status, second.status) == (Status.CRASH, Status.COMPLETED)
    assert known(first.failure).rank == 3
    assert first.reason == "rank 3 exited with 3 in timed (step 4 of 8) without a record"
    assert failing_rank.of.folder("first").rank_exit(3).read_text() == "3\n"
    assert failing_rank.seen["left"] == ""


def test_a_cancelled_job_leaves_its_trial_typed(cancelled: Played) -> None:
    run = cancelled.of
    assert run.record("first").status is Status.COMPLETED
    assert (run.record("second").status, run.record("second").reason) == (
        Status.CANCELLED,
        f"job {run.task} was cancelled",
    )
    assert not run.folder("third").record.exists()
    assert cancelled.said["finish"].exit_code == 0
    assert cancelled.said["status"].exit_code == 1
    assert f"continue with: zerobench submit --resume {run.run.path}" in cancelled.said["status"].output


def test_the_report_says_how_a_trial_ended_whose_runner_was_killed(runner_killed: Played) -> None:
    record = runner_killed.of.record("second")
    assert (record.status, record.job) == (Status.INTERRUPTED, runner_killed.of.task)
    assert known(record.failure).evidence == "Slurm says: FAILED"
    assert runner_killed.seen["left"] == ""
    assert (runner_killed.of.run.path / "report.html").exists()


def test_a_trial_that_hangs_ends_with_the_stacks_of_both_nodes(hanging: Played) -> None:
    record = hanging.of.record("first")
    assert record.status is Status.TIMEOUT, record.reason
    assert record.failure is not None
    assert sorted(record.failure.stacks) == ["0", "1", "2", "3"]
    assert all("in hang" in stack for stack in record.failure.stacks.values())
    assert hanging.of.record("second").status is Status.COMPLETED


def test_status_tells_how_a_run_stands_while_it_runs_and_when_it_is_over(watched: Played) -> None:
    during, after = watched.said["during"], watched.said["after"]
    assert during.exit_code == 3
    assert "3 trials, 1 completed, 1 running, 1 queued" in during.output
    assert "timed, step 4 of 8" in during.output
    assert after.exit_code == 0
    assert "3 trials, 3 completed" in after.output


def test_more_tasks_than_an_array_may_have_are_several_arrays(many_tasks: Played) -> None:
    jobs = read_submission(many_tasks.of.run).jobs
    assert [(job.name, job.num_tasks) for job in jobs] == [("1-node", MAX_ARRAY_SIZE), ("1-node-2", 1)]
    assert [many_tasks.of.record(name).status for name in many_tasks.of.trials] == [Status.COMPLETED] * 5
    assert {many_tasks.of.record(name).job for name in many_tasks.of.trials} == {
        *(f"{many_tasks.of.job_ids[0]}_{task}" for task in range(MAX_ARRAY_SIZE)),
        f"{many_tasks.of.job_ids[1]}_0",
    }


def test_a_shipped_script_runs_a_trial_by_hand(by_hand: Played) -> None:
    run = by_hand.of
    assert (run.record("first").status, run.record("first").job) == (Status.COMPLETED, str(run.job_ids[0])), run.logs()
    assert len(run.record("first").nodes) == 2
    assert not run.folder("second").start.exists()


def test_no_name_in_a_sweep_a_folder_or_an_option_is_run(hostile: Swept, cluster: Cluster) -> None:
    run = load_run(hostile.run.path)
    assert [trial.record.status for trial in run.trials()] == [Status.COMPLETED] * 2
    assert (run.folder.path / "report.html").exists()
    assert HOSTILE in str(run.folder.path)
    comment = cluster.ask("squeue", "--states=all", "--noheader", "--format=%k")
    assert HOSTILE in comment.splitlines()
    under = hostile.run.path.parents[1]
    assert list(under.rglob("pwned")) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_stage_trains_on_two_nodes_and_the_report_follows(stage_by_srun: Swept) -> None:
    run = load_run(stage_by_srun.run.path)
    trial = trained_on_two_nodes(run)
    [array, report] = read_submission(run.folder).jobs
    assert trial.record.job == f"{array.job_id}_0"
    assert len(read_tasks(run.folder.slurm_tasks(array.name))) == 1
    assert (run.folder.path / "report.html").exists()
    assert report.name == "report"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_deepspeeds_launcher_on_each_node_trains_another_stage_alike(
    stage_by_deepspeed: Swept, stage_by_srun: Swept
) -> None:
    ours, other = (trained_on_two_nodes(load_run(one.run.path)) for one in (stage_by_deepspeed, stage_by_srun))
    assert ours.ranks[0].losses == pytest.approx(other.ranks[0].losses, rel=1e-4)
    hostfile = ours.folder.path / "hostfile"
    assert [line.split()[1] for line in hostfile.read_text().splitlines()] == ["slots=2", "slots=2"]


def trained_on_two_nodes(run: Run) -> Trial:
    """The only trial, completed by two ranks on each of two nodes; and each node has said what it is."""
    [trial] = run.trials()
    assert trial.record.status is Status.COMPLETED
    assert [(rank.rank, rank.node, rank.local_rank) for rank in trial.ranks] == [
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)
    ]  # fmt: skip
    assert len(set(trial.record.nodes)) == 2
    assert [summary.node for summary in trial.record.nvml] == [0, 1]
    for node in trial.record.nodes:
        assert json.loads((run.folder.nodes / f"{node}.json").read_text())
    assert trial.ranks[0].losses
    return trial
