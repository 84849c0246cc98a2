"""How a watched script ended is typed from evidence, and what its tracker measured before is not lost."""

import signal
from dataclasses import replace

import pytest

from tests.tools.rank_records import rank_record
from zerobench.common.vocabulary import Category, Status
from zerobench.launch.run.outcome import Ending, Stopped
from zerobench.launch.run.ranks import RankDeath
from zerobench.launch.tracking.own_run import LEDGER_ALONE
from zerobench.launch.tracking.script_outcome import classify_script
from zerobench.records.progress import Progress
from zerobench.records.records import Failure, HostStanding


def message_of(failure):
    return None if failure is None else failure.message


KILL = "oom_kill in /proc/vmstat rose by 1"


def record(rank, status=Status.COMPLETED, message=None):
    failure = Failure(message=message, rank=rank) if message else None
    return rank_record("t", rank, world_size=2, status=status, failure=failure)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "the command exited with 3"),
        (255, "the command exited with 255"),  # sys.exit(-1), ssh: more often that than 256 - SIGHUP
        (-signal.SIGSEGV, "the command was killed by SIGSEGV"),
        (256 - signal.SIGKILL, "the first process to fail was killed by SIGKILL"),
        (128 + signal.SIGABRT, "the first process to fail was killed by SIGABRT"),
    ],
)
def test_a_crash_names_the_exit_status_or_the_signal_behind_it(code, words):
    status, failure, _ = classify_script(Ending(ranks_expected=1, exit_code=code))
    assert (status, message_of(failure)) == (Status.CRASH, words)


@pytest.mark.parametrize("code", [-signal.SIGKILL, 256 - signal.SIGKILL, 128 + signal.SIGKILL])
def test_a_kill_with_the_kernels_counter_risen_is_out_of_host_memory(code):
    status, failure, _ = classify_script(Ending(ranks_expected=1, exit_code=code, oom=KILL))
    assert (status, failure and failure.evidence) == (Status.OUT_OF_HOST_MEMORY, KILL)


def test_a_script_that_was_killed_leaves_its_trackers_last_account():
    held = HostStanding(at="the peak of start-up", by_category={Category.PARAMETERS: 5})
    fields = {"pid": 1, "hostname": "h", "phase": "first", "step_index": 0, "num_steps": 3, "memory_bytes": None}
    word = Progress(rank=3, updated_at_s=0.0, host_standing=held, **fields)
    ending = Ending(ranks_expected=1, exit_code=-signal.SIGKILL, oom=KILL, progress=[word])
    failure = classify_script(ending)[1]
    assert failure is not None
    assert failure.host_standing is not None
    assert failure.host_standing.is_last_account
    assert failure.host_standing.at == "the peak of start-up of rank 3"
    status, unproven, _ = classify_script(replace(ending, oom=None))
    assert status is Status.CRASH
    assert unproven is not None
    assert unproven.host_standing == failure.host_standing


def test_the_counter_alone_is_no_evidence_against_a_command_that_failed_by_itself():
    status, _, _ = classify_script(Ending(ranks_expected=1, exit_code=1, oom=KILL))
    assert status is Status.CRASH


def test_a_rank_that_recorded_its_failure_gives_the_reason():
    records = [record(0), record(1, Status.OUT_OF_DEVICE_MEMORY, "OutOfMemoryError in backward of step 0")]
    status, failure, _ = classify_script(Ending(ranks_expected=2, exit_code=1, records=records))
    assert status is Status.OUT_OF_DEVICE_MEMORY
    assert (failure and failure.rank, message_of(failure)) == (1, "OutOfMemoryError in backward of step 0")


def test_a_rank_that_died_after_its_tracked_steps_is_found_all_the_same():
    deaths = [RankDeath(1, 10.0, -signal.SIGSEGV)]
    ending = Ending(ranks_expected=2, exit_code=245, records=[record(0), record(1)], deaths=deaths)
    status, failure, _ = classify_script(ending)
    assert (status, failure and failure.rank) == (Status.CRASH, 1)


def test_a_script_that_was_stopped_is_interrupted():
    status, failure, _ = classify_script(Ending(ranks_expected=1, exit_code=-2, stopped=Stopped.INTERRUPTED))
    assert (status, message_of(failure)) == (Status.INTERRUPTED, "stopped before its end")


def test_a_script_that_was_stopped_after_all_tracked_steps_has_given_its_figures():
    ending = Ending(ranks_expected=2, exit_code=-2, records=[record(0), record(1)], stopped=Stopped.INTERRUPTED)
    status, failure, notes = classify_script(ending)
    assert (status, failure) == (Status.COMPLETED, None)
    assert notes == ["the script was stopped after its last tracked step"]


def test_a_script_that_was_stopped_with_its_ledger_alone_is_interrupted():
    records = [record(0).model_copy(update={"notes": [LEDGER_ALONE]}), record(1)]
    ending = Ending(ranks_expected=2, exit_code=-2, records=records, stopped=Stopped.INTERRUPTED)
    assert classify_script(ending)[0] is Status.INTERRUPTED


def test_a_failure_that_the_script_survived_is_a_note():
    records = [record(0, Status.CRASH, "boom")]
    status, failure, notes = classify_script(Ending(ranks_expected=1, exit_code=0, records=records))
    assert (status, failure, len(notes)) == (Status.COMPLETED, None, 1)
