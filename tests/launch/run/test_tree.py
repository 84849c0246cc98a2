"""Processes are found by what we gave them and ended whole, and only those."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from zerobench.launch.run import tree
from zerobench.launch.run.launcher import MARK

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
LISTENING = "import signal, time; signal.signal(signal.SIGUSR1, print); print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    tree.end(lambda: tree.members(str(tmp_path)), politely=False)


def start(mark: str, script: str = "print('ready', flush=True); import time; time.sleep(600)") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_process_is_found_in_another_session_with_its_parent_gone(mark: str, wait_until: Callable[..., None]) -> None:
    child = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True, stdout=s.DEVNULL).pid)"
    pid = int(subprocess.check_output([sys.executable, "-c", child], env={**os.environ, MARK: mark}))
    wait_until(lambda: [process.pid for process in tree.members(mark)] == [pid])
    tree.end(lambda: tree.members(mark))
    wait_until(lambda: not psutil.pid_exists(pid))


def test_a_process_without_the_mark_is_found_by_its_session() -> None:
    with subprocess.Popen(["sleep", "600"], env={}, start_new_session=True) as process:
        found = tree.members("no such mark", process.pid)
        process.kill()
    assert [each.pid for each in found] == [process.pid]


def test_others_are_left_alone(mark: str, tmp_path: Path) -> None:
    ours, other = start(mark), start(str(tmp_path / "another"))
    try:
        assert tree.end(lambda: tree.members(mark)) == [f"{ours.pid} {psutil.Process(other.pid).name()}"]
        assert ours.wait(5) == -signal.SIGTERM
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(mark: str) -> None:
    process = start(mark, STUBBORN)
    before = time.monotonic()
    tree.end(lambda: tree.members(mark), grace_s=0.5)
    assert process.wait(30) == -signal.SIGKILL
    assert 0.5 <= time.monotonic() - before < 30


def test_stacks_are_asked_only_of_those_that_can_answer(mark: str) -> None:
    deaf, listening = start(mark), start(mark, LISTENING)
    assert tree.request_stacks(tree.members(mark)) == [listening.pid]
    time.sleep(0.2)
    assert deaf.poll() is None, "SIGUSR1 without a handler would have ended it"
