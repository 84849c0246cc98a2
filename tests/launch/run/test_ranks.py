"""Ranks are watched by their progress files, and their deaths seen at once and by their true cause."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.rank_records import progress
from zerobench.launch.run.ranks import RankWatch
from zerobench.records.folder import TrialFolder, write_whole


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
