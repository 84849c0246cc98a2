"""The judgement of how a trial ended, over endings written out by hand."""

import signal
from typing import Any

import pytest

from tests.tools.known import known
from tests.tools.rank_records import progress, rank_of_two
from zerobench.common.vocabulary import Category, Phase, Status
from zerobench.launch.run.executor import Interruption, LocalExecutor
from zerobench.launch.run.outcome import Ending, Stopped, classify, describe_exit, interrupted, last_account
from zerobench.launch.run.quiet import Load
from zerobench.launch.run.ranks import RankDeath
from zerobench.records.progress import Progress
from zerobench.records.records import Failure, HostStanding


def at_step(rank: int) -> Progress:
    return progress(rank, pid=100 + rank, step_index=3)


BOTH = (at_step(0), at_step(1))
KILLED_ELSEWHERE = "oom_kill in /proc/vmstat rose by 1"


def failed(status: Status, *args: Any, **fields: Any) -> Failure:
    """The failure of a trial of two ranks that ends like this, with this status."""
    ended, failure = classify(Ending(2, *args, **fields))
    assert ended is status
    return known(failure)


@pytest.mark.parametrize("how", [{"exit_code": 250, "progress": BOTH}, {"exit_code": None, "stopped": Stopped.TIMEOUT}])
def test_all_ranks_completed_is_completed_whatever_the_launcher_says_or_where_it_hung(how: dict[str, Any]) -> None:
    assert classify(Ending(2, records=[rank_of_two(0), rank_of_two(1)], **how)) == (Status.COMPLETED, None)


def test_the_rank_that_failed_first_gives_the_reason() -> None:
    records = [
        rank_of_two(0, Status.CRASH, "connection closed"),
        rank_of_two(1, Status.OUT_OF_DEVICE_MEMORY, "asked 2 GiB"),
    ]
    ending: dict[str, Any] = {"exit_code": 1, "records": records, "progress": BOTH}
    failure = failed(Status.OUT_OF_DEVICE_MEMORY, **ending, written_at_s={0: 11.0, 1: 10.0})
    assert (failure.rank, failure.message, failure.phase) == (1, "rank 1: asked 2 GiB", Phase.FORWARD)


def test_a_ranks_own_failure_outranks_the_limit_that_its_peers_then_reached() -> None:
    ending = Ending(2, exit_code=None, records=[rank_of_two(1, Status.CRASH, "x")], stopped=Stopped.TIMEOUT)
    assert classify(ending)[0] is Status.CRASH


def test_a_killed_rank_is_the_cause_though_its_peer_recorded_the_closed_connection_before_we_knew() -> None:
    failure = failed(
        Status.CRASH,
        exit_code=1,
        records=[rank_of_two(0, Status.CRASH, "connection closed")],
        written_at_s={0: 10.0},
        deaths=[RankDeath(1, 10.3, -signal.SIGKILL)],
        progress=BOTH,
    )
    assert failure.rank == 1
    assert failure.message == "rank 1 was killed by SIGKILL in timed (step 4 of 8) without a record"


def test_memory_that_ran_out_just_before_a_peer_was_killed_is_the_cause() -> None:
    failure = failed(
        Status.OUT_OF_DEVICE_MEMORY,
        exit_code=1,
        records=[rank_of_two(0, Status.OUT_OF_DEVICE_MEMORY, "asked 2 GiB")],
        written_at_s={0: 10.0},
        deaths=[RankDeath(1, 10.3, -signal.SIGKILL)],  # no peer's death makes an allocator refuse
        progress=BOTH,
    )
    assert failure.message == "rank 0: asked 2 GiB"


def test_a_crash_well_before_a_peer_was_killed_is_the_cause() -> None:
    ending = Ending(
        2,
        exit_code=1,
        records=[rank_of_two(0, Status.CRASH, "the fault")],
        written_at_s={0: 10.0},
        deaths=[RankDeath(1, 40.0, -signal.SIGKILL)],  # the launcher's own, after half a minute of SIGTERM
        progress=BOTH,
    )
    assert classify(ending)[1] == Failure(rank=0, message="rank 0: the fault", phase=Phase.FORWARD)


@pytest.mark.parametrize(
    "killed",
    [
        {"exit_code": 247, "deaths": [RankDeath(0, 10.0, -signal.SIGKILL)]},
        {"exit_code": 0},
        {"exit_code": 0, "outlived_by": [0]},  # the launcher itself
    ],
)
def test_who_was_killed_or_vanished_with_the_kernels_word_is_out_of_host_memory(killed: dict[str, Any]) -> None:
    failure = failed(Status.OUT_OF_HOST_MEMORY, **killed, progress=BOTH, oom=KILLED_ELSEWHERE)
    assert failure.evidence == KILLED_ELSEWHERE


def test_the_kernels_word_alone_does_not_excuse_a_rank_that_died_otherwise() -> None:
    deaths = [RankDeath(0, 10.0, -signal.SIGSEGV), RankDeath(1, 11.0, -signal.SIGTERM)]
    failure = failed(Status.CRASH, exit_code=245, deaths=deaths, progress=BOTH, oom=KILLED_ELSEWHERE)
    assert "SIGSEGV" in failure.message


@pytest.mark.parametrize("deaths", [(), (RankDeath(0, 9.0, None), RankDeath(1, 9.1, None))])
@pytest.mark.parametrize(("exit_code", "words"), [(1, "exited with 1"), (245, "was killed by SIGSEGV")])
def test_a_rank_that_ended_otherwise_was_not_killed_for_want_of_memory_though_somebody_was(
    exit_code: int, words: str, deaths: tuple[RankDeath, ...]
) -> None:
    first = LocalExecutor(1, 0).first_rank_exit(exit_code)
    ending: dict[str, Any] = {"first_rank_exit": first, "progress": BOTH, "deaths": deaths, "oom": KILLED_ELSEWHERE}
    failure = failed(Status.CRASH, exit_code, **ending)
    assert failure.message == f"no record from rank 0, 1: the first to end {words}"


@pytest.mark.parametrize("first", [None, 0, -signal.SIGKILL, -signal.SIGTERM])
def test_a_status_that_a_kill_may_stand_behind_leaves_the_kernels_word(first: int | None) -> None:
    """SIGTERM is what srun makes of the others' end, 0 deepspeed's launcher of that of the process below it."""
    deaths = [RankDeath(0, 9.0, None)]
    ending = Ending(2, exit_code=first, first_rank_exit=first, deaths=deaths, progress=BOTH, oom=KILLED_ELSEWHERE)
    assert classify(ending)[0] is Status.OUT_OF_HOST_MEMORY


def test_a_launcher_that_failed_by_itself_was_not_killed_for_want_of_memory_though_somebody_was() -> None:
    ending: dict[str, Any] = {"first_rank_exit": 1, "progress": BOTH, "outlived_by": [0, 1], "oom": KILLED_ELSEWHERE}
    failure = failed(Status.LAUNCHER_FAULT, 1, **ending)
    assert failure.message.startswith("the launcher exited with 1 before its ranks")


def test_no_progress_is_a_timeout_with_the_stacks_the_load_and_the_option() -> None:
    load, stacks = Load(20.06, 2), {"0": "Current thread"}
    ending: dict[str, Any] = {"stopped": Stopped.TIMEOUT, "timeout_s": 900, "load": load, "stacks": stacks}
    failure = failed(Status.TIMEOUT, exit_code=None, progress=BOTH, **ending)
    assert failure.stacks == {"0": "Current thread"}
    assert failure.message == (
        "no progress for 900 s: rank 0 in timed (step 4 of 8); rank 1 in timed (step 4 of 8);"
        " the machine's load was 20.1 on 2 cores; --set timeout_s=1800 waits longer"
    )


@pytest.mark.parametrize(("exit_code", "words"), [(0, "exited with 0"), (-9, "was killed by SIGKILL")])
def test_a_launcher_that_ends_before_its_ranks_was_killed_whatever_its_status(exit_code: int, words: str) -> None:
    ending: dict[str, Any] = {"first_rank_exit": exit_code, "progress": BOTH, "outlived_by": [0, 1]}
    failure = failed(Status.LAUNCHER_FAULT, exit_code, **ending)
    assert failure.message == (
        f"the launcher {words} before its ranks: it or one of its processes was killed,"
        " leaving rank 0 in timed (step 4 of 8); rank 1 in timed (step 4 of 8)"
    )


def test_a_rank_that_outlived_the_launcher_and_completed_is_no_fault_of_the_launchers() -> None:
    ending = Ending(2, exit_code=1, records=[rank_of_two(0)], progress=BOTH, outlived_by=[0])
    assert classify(ending)[0] is Status.CRASH


def test_no_word_from_any_rank_is_a_launcher_fault_with_its_last_words() -> None:
    failure = failed(Status.LAUNCHER_FAULT, exit_code=1, last_lines="== stderr.txt\nssh: no route to host\n")
    assert failure.message.endswith("exited with 1 before any rank reported; last line: ssh: no route to host")
    assert "launcher exit status 1" in known(failure.evidence)


def test_the_words_in_a_log_decide_nothing() -> None:
    lying = "torch.OutOfMemoryError: CUDA out of memory\noom-kill: Killed process 7"
    assert classify(Ending(2, exit_code=1, last_lines=lying))[0] is Status.LAUNCHER_FAULT
    assert classify(Ending(2, exit_code=1, last_lines=lying, progress=BOTH))[0] is Status.CRASH


@pytest.mark.parametrize(
    ("exit_code", "words"), [(247, "was killed by SIGKILL"), (3, "exited with 3"), (0, "exited with 0")]
)
def test_ranks_gone_without_record_or_death_are_told_by_the_launchers_exit_status(exit_code: int, words: str) -> None:
    first = LocalExecutor(1, 0).first_rank_exit(exit_code)
    failure = failed(Status.CRASH, exit_code, first_rank_exit=first, records=[rank_of_two(0)], progress=BOTH)
    assert failure.message == f"no record from rank 1: the first to end {words}"


def test_of_many_ranks_without_a_record_the_first_eight_are_named() -> None:
    failure = known(classify(Ending(10, exit_code=1, first_rank_exit=1, progress=BOTH))[1])
    assert failure.message == "no record from rank 0, 1, 2, 3, 4, 5, 6, 7: the first to end exited with 1"


@pytest.mark.parametrize(("deaths", "rank"), [((), 0), ((RankDeath(0, 9.0, -signal.SIGTERM),), 1)])
def test_the_kernels_word_is_about_the_first_rank_whose_end_nobody_saw(
    deaths: tuple[RankDeath, ...], rank: int
) -> None:
    failure = failed(Status.OUT_OF_HOST_MEMORY, exit_code=0, progress=BOTH, deaths=deaths, oom=KILLED_ELSEWHERE)
    assert failure.rank == rank


def test_without_a_killed_peer_a_crash_is_dated_when_it_was_written() -> None:
    records = [rank_of_two(0, Status.CRASH, "first"), rank_of_two(1, Status.OUT_OF_DEVICE_MEMORY, "second")]
    assert failed(Status.CRASH, exit_code=1, records=records, written_at_s={0: 10.0, 1: 10.5}).rank == 0


def test_a_rank_that_the_launcher_ended_is_not_the_cause() -> None:
    deaths = [RankDeath(0, 9.0, -signal.SIGTERM), RankDeath(1, 10.0, 3)]
    assert failed(Status.CRASH, exit_code=3, deaths=deaths, progress=BOTH).rank == 1


def test_a_stopped_trial_is_interrupted_unless_it_had_completed() -> None:
    stopped = Ending(2, exit_code=None, records=[rank_of_two(0)], progress=BOTH, stopped=Stopped.INTERRUPTED)
    done = Ending(2, exit_code=None, records=[rank_of_two(0), rank_of_two(1)], stopped=Stopped.INTERRUPTED)
    assert classify(stopped)[0] is Status.INTERRUPTED
    assert classify(done)[0] is Status.COMPLETED


def test_the_reason_is_one_line() -> None:
    ending = Ending(1, exit_code=1, records=[rank_of_two(0, Status.CRASH, "first\n  second")])
    assert known(classify(ending)[1]).message == "rank 0: first second"


@pytest.mark.parametrize(("held", "rank"), [([1], 0), ([], None)])
def test_a_missing_record_is_one_ranks_where_one_alone_left_none(held: list[int], rank: int | None) -> None:
    records = [rank_of_two(one, Status.COMPLETED) for one in held]
    assert failed(Status.CRASH, exit_code=1, first_rank_exit=1, records=records, progress=BOTH).rank == rank


def test_the_last_line_is_told_up_to_two_hundred_characters() -> None:
    failure = failed(Status.LAUNCHER_FAULT, exit_code=1, last_lines="first\n  " + "x" * 300 + "  \n")
    assert failure.message.endswith("; last line: " + "x" * 200)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "ended"),
        (3, "exited with 3"),
        (-1, "was killed by SIGHUP"),
        (-64, "was killed by SIGRTMAX"),
        (-65, "exited with -65"),
    ],
)
def test_an_exit_status_that_is_no_signals_is_told_as_a_number(code: int | None, words: str) -> None:
    assert describe_exit(code) == words


TAKEN = Interruption(Status.INTERRUPTED, "the node went away", "NODE_FAIL")


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY])
def test_an_interruption_is_no_reason_of_a_trial_that_completed_or_ran_out_of_memory(status: Status) -> None:
    assert interrupted((status, None), lambda: TAKEN) == (status, None)


def test_what_took_the_machine_is_the_reason_of_a_trial_that_crashed() -> None:
    crash = (Status.CRASH, Failure(message="exited with 1"))
    assert interrupted(crash, lambda: None) == crash
    status, failure = interrupted(crash, lambda: TAKEN)
    assert (status, known(failure).message) == (Status.INTERRUPTED, "the node went away")
    assert known(failure).evidence == "NODE_FAIL; the ranks ended: exited with 1"


def test_of_a_rank_that_the_kernel_killed_the_last_account_is_told_and_said_to_be_that() -> None:
    words, accounts = [], []
    for rank, held in ((0, 9), (1, 5)):
        account = HostStanding(at="the peak of start-up", by_category={Category.PARAMETERS: held})
        accounts.append(account)
        words.append(at_step(rank).model_copy(update={"host_standing": account}))
    deaths = [RankDeath(rank=1, at_s=5.0, exit_code=-signal.SIGKILL)]
    killed: dict[str, Any] = {"exit_code": 247, "progress": words}
    standing = known(failed(Status.OUT_OF_HOST_MEMORY, **killed, deaths=deaths, oom="oom_kill rose").host_standing)
    assert (standing.by_category, standing.is_last_account) == ({Category.PARAMETERS: 5}, True)
    assert standing.at == "the peak of start-up of rank 1"
    assert last_account(words) == accounts[0].model_copy(
        update={"at": "the peak of start-up of rank 0", "is_last_account": True}
    )
    assert last_account([at_step(0)]) is None
    # By whom, nobody says: it may have been for want of memory all the same.
    assert failed(Status.CRASH, **killed, deaths=deaths).host_standing == standing
    deaths = [RankDeath(rank=1, at_s=5.0, exit_code=-signal.SIGSEGV)]
    assert failed(Status.CRASH, **killed, deaths=deaths).host_standing is None


def test_a_refused_rank_that_had_no_room_to_tell_what_it_held_is_told_by_its_last_account() -> None:
    account = HostStanding(at="the peak of start-up", by_category={Category.PARAMETERS: 5})
    words = [at_step(0).model_copy(update={"host_standing": account})]
    for status, told in ((Status.OUT_OF_HOST_MEMORY, True), (Status.CRASH, False)):
        records = [rank_of_two(0, status, "refused")]
        failure = known(classify(Ending(1, exit_code=1, records=records, progress=words))[1])
        assert (failure.host_standing is not None and failure.host_standing.is_last_account) is told
