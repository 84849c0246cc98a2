"""What a job learns of itself from Slurm's variables and programs."""

import pytest

from tests.launch.slurm.standins import Standins
from zerobench.common.errors import UserError
from zerobench.launch.slurm.job.allocation import Allocation, boot_times, down_nodes, parse_job, read_allocation

VARIABLES = {
    "SLURM_JOB_ID": "45",
    "SLURM_ARRAY_JOB_ID": "41",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_CPUS_ON_NODE": "64",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURMD_NODENAME": "n1",
}


@pytest.mark.parametrize(
    ("task_id", "restarts", "name"), [(None, 0, "41"), (3, 0, "41_3"), (0, 2, "41_0.3"), (None, 1, "41.2")]
)
def test_a_job_is_named_so_that_it_is_found_again(task_id: int | None, restarts: int, name: str) -> None:
    allocation = Allocation(41, task_id, restarts, ("n1",), 64, 8, "host")
    assert allocation.job == name
    assert parse_job(name) == (41, task_id, restarts)


def test_what_no_job_is_named_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_job("pbs.server")


def test_a_task_of_an_array_knows_its_nodes_and_what_they_have(slurm: Standins) -> None:
    slurm.answer("scontrol", "printf 'n1\\nn2\\n'")
    allocation = read_allocation(VARIABLES | {"SLURM_RESTART_COUNT": "1"})
    assert slurm.calls("scontrol") == ["show hostnames n[1-2]"]
    assert (allocation.job, allocation.nodes) == ("41_3.2", ("n1", "n2"))
    assert (allocation.cpus_per_node, allocation.gpus_per_node) == (64, 8)


def test_a_plain_job_without_gpus_has_no_task_and_none(slurm: Standins) -> None:
    slurm.answer("scontrol", "echo n1")
    allocation = read_allocation({"SLURM_JOB_ID": "45", "SLURM_JOB_NODELIST": "n1"})
    assert (allocation.job, allocation.task_id, allocation.gpus_per_node) == ("45", None, 0)


def test_outside_of_a_job_its_user_is_told_what_to_call() -> None:
    with pytest.raises(UserError, match=r"SLURM_JOB_ID is not set.*zerobench run SWEEP"):
        read_allocation({})


def test_a_job_whose_nodes_slurm_does_not_tell_is_refused(slurm: Standins) -> None:
    slurm.answer("scontrol", "exit 1")
    with pytest.raises(UserError, match=r"SLURM_JOB_NODELIST: 'n\[1-2\]'"):
        read_allocation(VARIABLES)


def test_nodes_that_are_down_or_do_not_answer_are_told_from_those_that_are_drained(slurm: Standins) -> None:
    slurm.answer("sinfo", "printf 'n1 mixed\\nn2 down*\\nn3 draining\\nn4 failing$\\nn2 down*\\nn5 idle~\\n'")
    assert down_nodes(["n1", "n2", "n3", "n4", "n5"]) == ["n2", "n4"]
    assert slurm.calls("sinfo") == ["--noheader --Node --nodes=n1,n2,n3,n4,n5 --format=%N %T"]


def test_of_no_nodes_nothing_is_asked(slurm: Standins) -> None:
    assert (down_nodes([]), boot_times([], 5.0)) == ([], {})
    assert slurm.calls("sinfo") == slurm.calls("scontrol") == []


def test_nodes_say_when_they_were_started(slurm: Standins) -> None:
    lines = [
        "NodeName=n1 Arch=x86_64 State=IDLE BootTime=1795252617 SlurmdStartTime=1795290913",
        "NodeName=n2 BootTime=None x=1",
    ]
    slurm.answer("scontrol", "\n".join(f"echo '{line}'" for line in lines))
    assert boot_times(["n1", "n2"], 5.0) == {"n1": 1795252617.0}


def test_without_slurms_answer_no_node_is_down_and_no_limit_is_known(slurm: Standins) -> None:
    for program in ("sinfo", "squeue", "scontrol"):
        slurm.answer(program, "exit 1")
    allocation = Allocation(41, 3, 0, ("n1",), 64, 8, "host")
    assert down_nodes(["n1"]) == []
    assert boot_times(["n1"], 5.0) == {}
    assert allocation.ends_at_s is None
    assert not allocation.limit_is_over(1e12)
