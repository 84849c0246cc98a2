"""What Slurm says it takes, read from what its programs print."""

from pathlib import Path

import pytest

from tests.launch.slurm.standins import Standins
from tests.tools.known import known
from zerobench.common.errors import UserError
from zerobench.launch.slurm.options import SubmitOptions
from zerobench.launch.slurm.submit.limits import Limits, partition_times, read_limits, submit_limits


def test_the_limits_are_the_controllers_and_the_partitions(slurm: Standins) -> None:
    limits = read_limits(SubmitOptions(partition="short,main", cpu_partition="cpu"))
    assert limits == Limits("zb", 1001, 10_000, None, 1800, None)
    assert read_limits(SubmitOptions()) == Limits("zb", 1001, 10_000, None, 86_400, 86_400)


def test_an_unknown_partition_is_refused_with_those_there_are(slurm: Standins) -> None:
    unknown = r"--partition: 'gpu' is not a partition of this cluster; did you mean 'cpu'\? choices: main, short, cpu"
    with pytest.raises(UserError, match=unknown):
        read_limits(SubmitOptions(partition="gpu"))


def test_accounting_tells_how_many_jobs_a_user_may_add(slurm: Standins) -> None:
    slurm.answer("sacctmgr", "case $* in *assoc*) printf 'a|50|\\nb|9|\\n';; esac")
    slurm.answer("squeue", "printf '1_0\\n1_1\\n7\\n'")
    assert read_limits(SubmitOptions(account="a")).max_submit_jobs == 47  # type: ignore[union-attr]
    assert read_limits(SubmitOptions()).max_submit_jobs == 6  # type: ignore[union-attr]


def test_with_more_in_the_queue_than_the_limit_of_today_a_user_may_add_none(slurm: Standins) -> None:
    slurm.answer("sacctmgr", "case $* in *assoc*) printf 'a|2|\\n';; esac")
    slurm.answer("squeue", "printf '1_0\\n1_1\\n7\\n'")
    assert known(read_limits(SubmitOptions())).max_submit_jobs == 0


def test_a_quality_of_service_binds_where_it_is_the_one_asked_for_or_usual() -> None:
    qualities = "normal|100|\nhigh||5\n"
    assert sorted(submit_limits("a||normal\n", qualities, None, None)) == [100]
    assert sorted(submit_limits("a|7|normal\n", qualities, None, "high")) == [5, 7]
    assert sorted(submit_limits("a||\n", qualities, None, None)) == []


def test_accounting_that_does_not_answer_is_not_waited_for(slurm: Standins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobench.launch.slurm.submit.limits.ACCOUNTING_TIMEOUT_S", 0.3)
    slurm.answer("sacctmgr", "sleep 20")
    assert read_limits(SubmitOptions()).max_submit_jobs is None  # type: ignore[union-attr]


def test_without_slurm_there_are_no_limits_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_limits(SubmitOptions()) is None


def test_the_most_tasks_are_the_smaller_of_the_users_and_the_controllers() -> None:
    assert Limits(max_job_count=10, max_submit_jobs=7).max_tasks == 7
    assert Limits(max_job_count=10).max_tasks == 10
    assert Limits().max_tasks is None


def test_partitions_without_a_time_limit_have_none() -> None:
    assert partition_times("a*|1-00:00:00\nb|infinite\nc|30:00\n") == {"a*": 86_400, "b": None, "c": 1800}
