"""Of several tasks that were submitted for a trial, the one that does it is known by the order and by Slurm's word."""

import pytest

from zerobench.launch.slurm.jobs import JobKind, SubmittedJob
from zerobench.launch.slurm.tasks import Stage, TaskState
from zerobench.launch.slurm.watch.holders import holders_of, index_of

OVER, ACTIVE, WAITING = ("COMPLETED",), ("RUNNING",), ("PENDING",)


def job(job_id: int | None) -> SubmittedJob:
    return SubmittedJob(
        name=f"array-{job_id}",
        kind=JobKind.TRIALS,
        job_id=job_id,
        num_tasks=1,
        num_nodes=1,
        time_limit_s=60,
        submitted_at_s=0.0,
    )


@pytest.mark.parametrize(
    ("first", "second", "holder"),
    [
        (OVER, OVER, 2),
        (OVER, WAITING, 2),
        (ACTIVE, OVER, 1),
        (WAITING, OVER, 1),
        (ACTIVE, WAITING, 2),
        (WAITING, WAITING, 2),
        (WAITING, ACTIVE, 2),
        (ACTIVE, None, 1),  # Slurm has forgotten it: it is over
    ],
)
def test_the_last_task_submitted_does_a_trial_unless_it_is_over_and_an_earlier_one_lives(
    first: tuple[str, ...], second: tuple[str, ...] | None, holder: int
) -> None:
    states = {number: [TaskState(0, words)] for number, words in ((1, first), (2, second)) if words is not None}
    tasks = {"array-1": [["trial"]], "array-2": [["trial"]]}
    found = holders_of([job(1), job(2)], tasks, index_of(states))
    assert found["trial"].job.job_id == holder


def test_without_slurms_word_the_last_task_submitted_does_a_trial() -> None:
    tasks = {"array-1": [["trial", "other"]], "array-2": [["trial"]]}
    found = holders_of([job(1), job(2)], tasks, None)
    assert {trial: one.job.job_id for trial, one in found.items()} == {"trial": 2, "other": 1}
    assert [one.stage for one in found.values()] == [None, None]
    run_here = holders_of([job(None)], {"array-None": [["trial"]]}, {})
    assert run_here["trial"].stage is not Stage.OVER
