"""Locks of dead compilations in users' own processes: real processes that load a kernel by torch's own function."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.launch.machine.test_compile_locks import compiling
from tests.launch.tracking.conftest import Watcher
from zerobench.launch.machine.compile_locks import Holder, holder_of

LOAD = """
import sys
import torch
from torch.utils.cpp_extension import load
{imported}
load("tiny", [sys.argv[1]], is_python_module=False)
print("loaded")
"""
GUARDED = LOAD.format(imported="import zerobench")
OF_A_USER = LOAD.format(imported="")
PATIENCE_S = 120.0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """C++ that compiles in a second."""
    path = tmp_path / "tiny.cpp"
    path.write_text("int one() { return 1; }\n")
    return path


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where torch locks the kernel, of which nothing is there yet."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    folder = tmp_path / "extensions" / "tiny"
    folder.mkdir(parents=True)
    return folder / "lock"


Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(source: Path) -> Iterator[Start]:
    """Starts a program that loads the kernel, which ends with the test at the latest."""
    with ExitStack() as stack:

        def run(program: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", program, str(source)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            end = threading.Timer(PATIENCE_S, process.kill)
            stack.callback(end.cancel)
            end.start()
            return process

        yield run


def test_of_two_ranks_that_find_the_lock_of_a_dead_one_one_compiles_and_says_so_and_the_other_waits_for_it(
    lock: Path, start: Start
) -> None:
    lock.touch()
    ranks = [start(GUARDED) for _ in range(2)]
    said = [rank.communicate() for rank in ranks]
    assert [out for out, _ in said] == ["loaded\n"] * 2, said
    told = [line for _, error in said for line in error.splitlines() if line.startswith("zerobench:")]
    assert told == [f"zerobench: took over the lock of an interrupted compilation, compiling: {lock}"]
    assert (lock.parent / "tiny.so").exists()
    assert not lock.exists()


def test_the_lock_of_a_live_compilation_is_waited_for_aloud_and_never_taken(lock: Path, start: Start) -> None:
    with compiling(lock) as holder:
        rank = start(GUARDED)
        assert rank.stderr is not None
        said = next(line for line in rank.stderr if line.startswith("zerobench:"))
        assert said == f"zerobench: waiting for another process that compiles: {lock}\n"
        assert holder.poll() is None
        assert holder_of(lock) is Holder.ALIVE
        assert lock.exists()


def test_a_rank_whose_holder_dies_meanwhile_ends_with_the_reason(lock: Path, start: Start) -> None:
    with compiling(lock):
        rank = start(GUARDED)
        assert rank.stderr is not None
        next(line for line in rank.stderr if "waiting for another process" in line)
    _, error = rank.communicate()
    assert rank.returncode == 1
    assert f"RuntimeError: the compilation that holds {lock} was interrupted; start the training again" in error


def test_a_watched_script_that_knows_nothing_of_zerobench_compiles_what_a_dead_one_left(
    lock: Path, source: Path, watch_python: Watcher
) -> None:
    lock.touch()
    seen = watch_python(OF_A_USER, str(source))
    assert bytes(seen.screen.out) == b"loaded\n"
    assert seen.screen.notes == [f"removed the lock of an interrupted compilation: {lock}"]
    assert seen.screen.notes[0] in (seen.trial.record.notes or [])
    assert (lock.parent / "tiny.so").exists()


HOLDS_AND_DIES = """
import subprocess, sys, time
hold = "import os, sys; from torch.utils.file_baton import FileBaton; assert FileBaton(sys.argv[1]).try_acquire(); "
hold += "print('held', flush=True); sys.stdin.read()"
holder = subprocess.Popen([sys.executable, "-c", hold, sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
holder.stdout.readline()
waiter = subprocess.Popen([sys.executable, "-c", sys.argv[3], sys.argv[1]], stdout=subprocess.PIPE)
waiter.stdout.readline()
time.sleep(2)  # it has found the lock by now
holder.kill()
sys.exit(waiter.wait())
"""


def test_a_watched_script_does_not_wait_for_ever_for_a_compilation_that_dies_while_it_runs(
    lock: Path, source: Path, watch_python: Watcher
) -> None:
    waits = OF_A_USER.replace("load(", "print('about to load', flush=True); load(", 1)
    seen = watch_python(HOLDS_AND_DIES, str(source), str(lock), waits)
    assert seen.watched.exit_code != 0
    outcome = "ranks that waited for it fail, and compile when started again"
    assert seen.screen.notes == [f"removed the lock of an interrupted compilation: {lock}; {outcome}"]


def test_the_guard_is_not_laid_twice_and_plain_imports_of_zerobench_bring_no_torch() -> None:
    twice = (
        "import torch, zerobench; from torch.utils.file_baton import FileBaton; first = FileBaton.wait\n"
        "from zerobench import track; assert FileBaton.wait is first"
    )
    without = "import sys, zerobench; assert 'torch' not in sys.modules"
    for program in (twice, without):
        subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
