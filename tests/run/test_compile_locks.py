"""Locks that a killed compilation leaves, made by torch's own lock class in processes that live and die."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zerobench.run.compile_locks import build_root, left_over, remove_left_over

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
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
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
    began_s = time.time() - 1
    with compiling(lock):
        assert remove_left_over(began_s, environ) == []
        assert left_over(environ) == []
        assert lock.exists()
    assert left_over(environ) == [lock]
    assert remove_left_over(began_s, environ) == [lock]
    assert not lock.exists()


def test_a_lock_from_before_the_trial_is_named_and_left_alone(lock: Path, environ: dict[str, str]) -> None:
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert remove_left_over(time.time() + 1, environ) == []
    assert left_over(environ) == [lock]


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
