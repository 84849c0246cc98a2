"""Locks that a killed compilation leaves, made by torch's own lock class in processes that live and die."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tools.known import known
from zerobench.config.deepspeed.kernels import build_root
from zerobench.launch.machine import compile_locks
from zerobench.launch.machine.compile_locks import Holder, free_stale_locks, holder_of, take_over

HOLD = """
import sys
from torch.utils.file_baton import FileBaton
assert FileBaton(sys.argv[1]).try_acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def compiling(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds `lock` as torch does while it compiles; killed at the end."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", HOLD, str(lock)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert known(process.stdout).readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose kernels are compiled in an empty folder."""
    return {"HOME": str(tmp_path)}


@pytest.fixture
def lock(environ: dict[str, str]) -> Path:
    """The lock of one kernel."""
    return build_root(environ) / "py311_cpu" / "cpu_adam" / "lock"


def test_a_lock_is_kept_while_its_process_lives_and_removed_once_that_was_killed(
    lock: Path, environ: dict[str, str]
) -> None:
    with compiling(lock):
        assert free_stale_locks(environ) == []
        assert lock.exists()
    assert free_stale_locks(environ) == [f"removed the lock of an interrupted compilation: {lock}"]
    assert not lock.exists()


def test_a_lock_of_any_age_is_taken_from_a_dead_holder_and_from_no_other(lock: Path, environ: dict[str, str]) -> None:
    with compiling(lock):
        os.utime(lock, (0, 0))
        assert free_stale_locks(environ) == []
    os.utime(lock, (0, 0))
    assert len(free_stale_locks(environ)) == 1
    assert not lock.exists()


def test_a_lock_that_its_holder_has_closed_and_is_about_to_remove_is_left_to_it(
    lock: Path, environ: dict[str, str]
) -> None:
    lock.parent.mkdir(parents=True)
    lock.touch()
    removal = threading.Timer(0.05, lock.unlink)  # an error if it is gone by then
    removal.start()
    assert free_stale_locks(environ) == []
    removal.join()
    lock.touch()
    removal = threading.Timer(0.05, lock.unlink)
    removal.start()
    assert take_over(lock) is None
    removal.join()


def test_who_takes_over_a_lock_holds_it_until_he_ends(lock: Path, environ: dict[str, str]) -> None:
    lock.parent.mkdir(parents=True)
    lock.touch()
    descriptor = take_over(lock)
    assert descriptor is not None
    assert holder_of(lock) is Holder.ALIVE
    assert take_over(lock) is None
    assert free_stale_locks(environ) == []
    os.close(descriptor)
    assert holder_of(lock) is Holder.DEAD


def test_a_lock_that_another_machine_may_hold_is_told_of_and_left_alone(
    lock: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setattr(compile_locks, "_LOCAL", {"none"})
    assert free_stale_locks(environ, tell_unknown=False) == []
    [line] = free_stale_locks(environ)
    assert line.startswith(f"{lock}: cannot tell whether its compilation still runs")
    assert lock.exists()


@pytest.mark.parametrize(("around", "within", "holder"), [("ext4", "nfs4", "UNKNOWN"), ("nfs4", "ext4", "DEAD")])
def test_a_lock_lies_on_the_innermost_file_system_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, around: str, within: str, holder: str
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    mounts = [("/", around), (os.path.realpath(tmp_path), within), ("/elsewhere", around)]
    lines = [f"36 35 0:3 / {point} rw - {kind} device rw" for point, kind in mounts]
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "\n".join(lines))
    assert holder_of(lock) is Holder[holder]


def test_a_lock_whose_holder_cannot_be_known_is_told_of_and_left_alone(lock: Path, environ: dict[str, str]) -> None:
    elsewhere = lock.parent / "somewhere_else"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    lock.symlink_to(elsewhere)
    [line] = free_stale_locks(environ)
    assert line.startswith(f"{lock}: cannot tell whether its compilation still runs")
    assert lock.is_symlink()
    assert elsewhere.exists()


ASK = """
import sys
from pathlib import Path
from zerobench.launch.machine.compile_locks import _holder_of
with _holder_of(Path(sys.argv[1])) as holder:
    print(holder.name, flush=True)
    sys.stdin.read()
print("whole", flush=True)
"""


def test_of_two_that_ask_at_the_same_time_one_takes_the_lock_and_neither_is_ended_by_the_other(
    lock: Path, environ: dict[str, str]
) -> None:
    lock.parent.mkdir(parents=True)
    lock.touch()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ASK, str(lock)], stdin=pipe, stdout=pipe, text=True) as first:
        assert known(first.stdout).readline() == "DEAD\n"
        assert free_stale_locks(environ) == []
        said, _ = first.communicate()
    assert (said, first.returncode) == ("whole\n", 0)


SHOW = """
import os, sys
from torch.utils.cpp_extension import _get_build_directory
for name, value in [("HOME", sys.argv[1]), ("TORCH_EXTENSIONS_DIR", sys.argv[1] + "/named")]:
    os.environ[name] = value
    print(_get_build_directory("cpu_adam", verbose=False))
"""


def test_the_folder_is_the_one_that_torch_uses(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHOW, str(tmp_path)]
    in_home, named = subprocess.run(command, env={}, capture_output=True, text=True, check=True).stdout.split()
    assert build_root({"HOME": str(tmp_path)}) in Path(in_home).parents
    assert build_root({"TORCH_EXTENSIONS_DIR": str(tmp_path / "named")}) in Path(named).parents
