"""Ranks are watched by their progress files, and their deaths seen at once and by their true cause."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.known import known
from tests.tools.rank_records import progress, rank_of_two
from zerobench.common.vocabulary import Status
from zerobench.launch.run.outcome import Ending, classify
from zerobench.launch.run.ranks import RankDeath, RankWatch, written_at_s
from zerobench.records.folder import TrialFolder, write_whole

BEGAN_S = 1_000_000.0
HOUR_S = 3600.0

Put = Callable[[int, float], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Writes the record of a rank with a modification time."""

    def one(rank: int, at_s: float) -> Path:
        path = TrialFolder(tmp_path).rank_record(rank)
        path.write_text("{}")
        os.utime(path, (at_s, at_s))
        return path

    return one


def test_a_time_that_can_be_true_is_believed_though_the_record_was_seen_late(tmp_path: Path, put: Put) -> None:
    path = put(0, BEGAN_S + 10)
    assert written_at_s(TrialFolder(tmp_path), [0], BEGAN_S, {path: BEGAN_S + 40}) == {0: BEGAN_S + 10}


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_a_time_of_a_wrong_clock_is_that_at_which_the_record_was_seen(tmp_path: Path, put: Put, ahead_s: float) -> None:
    path = put(0, BEGAN_S + 10 + ahead_s)
    assert written_at_s(TrialFolder(tmp_path), [0], BEGAN_S, {path: BEGAN_S + 10.2}) == {0: BEGAN_S + 10.2}


def test_a_record_that_nobody_saw_while_the_trial_ran_is_as_old_as_its_reading_at_most(
    tmp_path: Path, put: Put
) -> None:
    before = time.time()
    put(0, before + HOUR_S)
    assert before <= written_at_s(TrialFolder(tmp_path), [0], BEGAN_S, {})[0] <= time.time()


@pytest.mark.parametrize("ahead_s", [0.0, HOUR_S, -HOUR_S])
def test_the_first_failure_is_the_first_one_on_whatever_clock_its_node_runs(
    tmp_path: Path, put: Put, ahead_s: float
) -> None:
    """Rank 1 failed first, on a node with that clock; then rank 0 recorded its own, then rank 2 was killed."""
    paths = {1: put(1, BEGAN_S + 10 + ahead_s), 0: put(0, BEGAN_S + 20)}
    seen = {paths[1]: BEGAN_S + 10.25, paths[0]: BEGAN_S + 20.25}
    ending = Ending(
        3,
        exit_code=1,
        records=[rank_of_two(0, Status.CRASH, "fell with it"), rank_of_two(1, Status.CRASH, "the cause")],
        written_at_s=written_at_s(TrialFolder(tmp_path), paths, BEGAN_S, seen),
        deaths=(RankDeath(2, BEGAN_S + 30, -signal.SIGKILL),),
    )
    failure = known(classify(ending)[1])
    assert (failure.rank, failure.message) == (1, "rank 1: the cause")


def report(folder: TrialFolder, rank: int, pid: int, *, step: int = 0, hostname: str | None = None) -> None:
    said = progress(rank, pid=pid, hostname=hostname or socket.gethostname(), step_index=step)
    write_whole(folder.progress(rank), said.model_dump_json())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGSEGV, -11)])
def test_a_death_is_seen_at_once_with_its_signal_before_the_parent_collects_it(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    folder = TrialFolder(tmp_path)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        watch = RankWatch(folder, process.pid)
        report(folder, 1, process.pid)
        watch.look()
        process.send_signal(number)
        before = time.monotonic()
        watch.wait(None, timeout_s=60)
        waited_s = time.monotonic() - before
        watch.close()
    assert watch.deaths[1].exit_code == code
    assert waited_s < 30


def test_a_rank_that_died_before_we_looked_is_seen_dead(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    folder = TrialFolder(tmp_path)
    with subprocess.Popen(["sh", "-c", "exit 3"], start_new_session=True) as process:
        wait_until(lambda: "\nState:\tZ" in Path(f"/proc/{process.pid}/status").read_text())
        report(folder, 0, process.pid)
        watch = RankWatch(folder, process.pid)
        watch.look()
    assert watch.deaths[0].exit_code == 3


def test_a_process_of_another_session_is_not_taken_for_a_rank(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        watch = RankWatch(folder, session=os.getpid())
        report(folder, 0, process.pid)
        watch.look()
        process.kill()
        watch.wait(None, timeout_s=0.1)
    assert watch.deaths == {}


def test_the_latest_word_of_each_rank_is_given_by_rank(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    watch = RankWatch(folder, session=os.getpid())
    report(folder, 10, 1, hostname="elsewhere")
    report(folder, 2, 1, hostname="elsewhere")
    watch.look()
    report(folder, 2, 1, step=5, hostname="elsewhere")
    assert [(p.rank, p.step_index) for p in watch.look()] == [(2, 5), (10, 0)]


def test_a_torn_progress_file_is_passed_over_until_it_is_whole(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    watch = RankWatch(folder, session=os.getpid())
    folder.progress(0).write_text('{"rank": 0, "pi')
    assert watch.look() == []
    report(folder, 0, 1, hostname="elsewhere")
    assert [p.rank for p in watch.look()] == [0]
