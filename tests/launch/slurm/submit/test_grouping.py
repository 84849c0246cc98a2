"""How a run's trials become job arrays: which share a task, and that Slurm's limits hold."""

from collections.abc import Sequence

import pytest

from zerobench.common.errors import UserError
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.slurm.jobs import JobKind
from zerobench.launch.slurm.submit.grouping import MOST_PER_JOB, START_UP_S, JobArray, group, shape_of
from zerobench.launch.slurm.submit.limits import Limits

MODEL = resolve_model("llama-20m")


def trial(**fields: object) -> TrialSpec:
    return TrialSpec.model_validate({"model": MODEL, "strategy": "zero2", "timeout_s": 900} | fields)


def trials(count: int, **fields: object) -> list[TrialSpec]:
    return [trial(**fields).model_copy(update={"repeat": number}) for number in range(count)]


def sizes(arrays: Sequence[JobArray]) -> list[list[int]]:
    return [[len(task) for task in array.tasks] for array in arrays]


def test_trials_on_as_many_nodes_share_an_array_and_predictions_have_their_own() -> None:
    mixed = [
        trial(num_nodes=4, gpus_per_node=8),
        trial(num_nodes=2, gpus_per_node=8),
        trial(strategy="single"),
        trial(num_nodes=4, gpus_per_node=8, evidence=Evidence.SOLO),
        trial(num_nodes=4, gpus_per_node=8, evidence=Evidence.SIMULATED),
        trial(num_nodes=4, gpus_per_node=8, evidence=Evidence.FORMULA),
    ]
    shapes = [shape_of(one) for one in mixed]
    assert shapes == [
        (JobKind.TRIALS, 4),
        (JobKind.TRIALS, 2),
        (JobKind.TRIALS, 1),
        (JobKind.TRIALS, 1),
        (JobKind.PREDICTIONS, 1),
        (JobKind.PREDICTIONS, 1),
    ]
    arrays = group(mixed, Limits())
    found = [(array.kind, array.num_nodes, array.num_trials) for array in arrays]
    assert found == [
        (JobKind.PREDICTIONS, 1, 2),
        (JobKind.TRIALS, 1, 2),
        (JobKind.TRIALS, 2, 1),
        (JobKind.TRIALS, 4, 1),
    ]


def test_every_trial_is_in_one_task_and_in_no_other() -> None:
    asked = [*trials(300), *trials(77, num_nodes=2), *trials(11, evidence=Evidence.FORMULA)]
    arrays = group(asked, Limits(max_array_size=7), trials_per_job=3)
    given = [trial_id for array in arrays for task in array.tasks for trial_id in task]
    assert sorted(given) == sorted(one.trial_id for one in asked)


def test_trials_with_little_work_lie_together_whatever_their_order() -> None:
    large = [trial(micro_batch_size=8, sequence_length=size) for size in (512, 1024)]
    small = [trial(micro_batch_size=1, sequence_length=size) for size in (16, 32)]
    [array] = group([large[0], small[0], large[1], small[1]], Limits(), trials_per_job=2)
    assert array.tasks == [[one.trial_id for one in small], [one.trial_id for one in large]]


def test_the_time_limit_has_room_for_every_trial_and_for_a_hang_of_the_last_in_whole_minutes() -> None:
    [array] = group(trials(4, timeout_s=110), Limits(), trials_per_job=4)
    assert array.time_limit_s == 900
    assert 900 - 60 < START_UP_S + 4 * 110 + 110 <= 900
    [array] = group(trials(1, timeout_s=600), Limits(), trials_per_job=1)
    assert array.time_limit_s == START_UP_S + 2 * 600


def test_the_time_limit_is_the_one_asked_for_but_never_above_the_partitions() -> None:
    four = trials(4)
    assert group(four, Limits(), trials_per_job=4, time_limit_s=600)[0].time_limit_s == 600
    assert group(four, Limits(max_time_s=1800), trials_per_job=4)[0].time_limit_s == 1800
    assert group(four, Limits(max_time_s=1800), trials_per_job=4, time_limit_s=3600)[0].time_limit_s == 1800


def test_a_task_is_filled_to_some_two_hours_unless_the_partition_has_less() -> None:
    assert sizes(group(trials(20), Limits())) == [[8, 8, 4]]
    assert sizes(group(trials(5), Limits(max_time_s=3600))) == [[2, 2, 1]]
    assert sizes(group(trials(2, timeout_s=10_000), Limits())) == [[1, 1]]
    assert max(map(max, sizes(group(trials(200, timeout_s=1), Limits())))) == MOST_PER_JOB


def test_ten_thousand_trials_are_few_arrays_within_the_longest_one() -> None:
    arrays = group(trials(10_000), Limits(max_array_size=1001))
    assert [len(array.tasks) for array in arrays] == [1001, 249]
    assert len(group(trials(10_000), Limits(max_array_size=1001), trials_per_job=1)) == 10


def test_tasks_grow_where_slurm_takes_few_jobs() -> None:
    arrays = group([*trials(1000), *trials(10, num_nodes=2)], Limits(max_submit_jobs=21))
    assert sum(len(array.tasks) for array in arrays) <= 20
    assert sum(array.num_trials for array in arrays) == 1010


def test_too_many_jobs_are_refused_with_the_smallest_number_that_will_do() -> None:
    limits = Limits(max_submit_jobs=21, max_job_count=10_000)
    with pytest.raises(UserError, match=r"--trials-per-job: 2 makes 50 jobs .* accepts 21 .* fits: 5$"):
        group(trials(100), limits, trials_per_job=2)
    assert [len(array.tasks) for array in group(trials(100), limits, trials_per_job=5)] == [20]


def test_more_kinds_of_jobs_than_slurm_takes_are_refused() -> None:
    with pytest.raises(UserError, match="3 jobs and a report"):
        group([trial(), trial(num_nodes=2), trial(num_nodes=3)], Limits(max_submit_jobs=3))


def test_node_hours_count_every_task_on_all_of_its_nodes() -> None:
    assert JobArray(JobKind.TRIALS, 4, [["a"], ["b"], ["c"]], 1800).node_hours == 6.0


def test_predictions_get_the_time_that_four_at_once_take() -> None:
    [array] = group(trials(8, evidence=Evidence.SIMULATED), Limits(), trials_per_job=8)
    assert array.time_limit_s == START_UP_S + 2 * 900 + 900
    [array] = group(trials(1, evidence=Evidence.SIMULATED), Limits(), trials_per_job=8)
    assert array.time_limit_s == START_UP_S + 900 // 4 + 15 + 900
