"""Kernels before the first trial: compiled once, in sight, stopped without a trace, and what one that fails does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launch.machine.test_compile_locks import compiling
from tests.tools.children import living_children
from tests.tools.laid_out import trial_laid_out
from zerobench.common.vocabulary import Status
from zerobench.config.deepspeed.kernels import ARCHITECTURES, missing
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run import kernels
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.kernels import Failures, compile_first
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import run_sweep
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import TrialFolder
from zerobench.records.store import load_run

NEEDED = ["deepspeed_shm_comm", "cpu_adam"]
"""By ZeRO-1 with DeepSpeedCPUAdam, on a CPU."""
MakeTrial = Callable[..., TrialSpec]


@dataclass(frozen=True)
class StandinExecutor(LocalExecutor):
    """Its stand-in ranks load no kernel; here they are taken for ranks that do."""

    def compiles_for(self, trial: TrialSpec) -> bool:
        return not self.nodes(trial)


EXECUTOR = StandinExecutor(2, 0, worker_module="standin_worker")


class Heard(Observer):
    """What a person is told before the first trial, in order; how long it was said to take."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.spent_s: dict[str, float] = {}

    def compiling(self, kernel: str, spent_s: float) -> None:
        self.spent_s[kernel] = spent_s

    def note(self, line: str) -> None:
        self.told.append(line)

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        self.told.append(f"trial {number} of {to_do}")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of kernels, into which a stand-in compiles each in a second; nothing is left of it."""
    root = tmp_path / "kernels"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(root))
    monkeypatch.setenv("STANDIN_COMPILES_S", "1")
    monkeypatch.setattr(kernels, "MODULE", "standin_compiler")
    yield root
    assert living_children("standin_compiler") == []


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def zero1(make_trial: MakeTrial, tmp_path: Path) -> tuple[TrialSpec, TrialFolder]:
    trial = make_trial("needs", strategy="zero1", offload_optimizer="cpu", optimizer="cpu_adam")
    return trial, trial_laid_out(tmp_path / "zero1", trial)


Compile = Callable[[], Failures]


@pytest.fixture
def compile_all(zero1: tuple[TrialSpec, TrialFolder], heard: Heard) -> Compile:
    return lambda: compile_first([zero1, zero1], EXECUTOR, Stop(), heard)


def untimed(told: list[str]) -> list[str]:
    return [line.partition(" in ")[0] if line.startswith("compiled ") else line for line in told]


def test_what_is_missing_is_compiled_once_and_said_while_it_lasts(
    root: Path, compile_all: Compile, heard: Heard
) -> None:
    assert compile_all() == {}
    assert missing(NEEDED, os.environ) == []
    assert untimed(heard.told) == [f"compiled {name}" for name in NEEDED]
    assert list(heard.spent_s) == NEEDED
    assert min(heard.spent_s.values()) > 0.4
    heard.told.clear()
    assert compile_all() == {}
    assert heard.told == []
    assert list(root.glob("*/lock")) == []


def test_a_stop_ends_the_compilation_and_leaves_no_lock(
    root: Path,
    zero1: tuple[TrialSpec, TrialFolder],
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Callable[..., None],
) -> None:
    monkeypatch.setenv("STANDIN_COMPILES_S", "600")
    stop = Stop()
    asked: list[float] = []

    def ask() -> None:
        wait_until(lambda: list(root.glob("*/lock")))
        asked.append(time.monotonic())
        stop.ask()

    thread = threading.Thread(target=ask)
    thread.start()
    failures = compile_first([zero1], EXECUTOR, stop, heard)
    thread.join()
    assert time.monotonic() - asked[0] < 60
    assert (failures, heard.told) == ({}, [])
    assert list(root.glob("*/lock")) == []


def test_a_lock_left_by_a_killed_compilation_is_told_and_taken(root: Path, compile_all: Compile, heard: Heard) -> None:
    lock = root / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (0, 0))
    assert compile_all() == {}
    freed = f"removed the lock of an interrupted compilation: {lock}"
    assert untimed(heard.told) == [freed, *(f"compiled {name}" for name in NEEDED)]


def test_the_lock_of_a_kernel_that_is_compiled_is_taken_too_since_ranks_would_wait_for_it(
    root: Path, compile_all: Compile, heard: Heard
) -> None:
    compile_all()
    heard.told.clear()
    lock = root / "cpu_adam" / "lock"
    lock.touch()
    assert compile_all() == {}
    assert heard.told == [f"removed the lock of an interrupted compilation: {lock}"]
    assert not lock.exists()


def test_a_compilation_that_dies_while_it_is_waited_for_is_done_in_its_place(
    root: Path, compile_all: Compile, heard: Heard, wait_until: Callable[..., None]
) -> None:
    lock = root / "deepspeed_shm_comm" / "lock"
    with compiling(lock) as other:

        def kill() -> None:
            wait_until(lambda: heard.spent_s)
            other.kill()

        threading.Thread(target=kill).start()
        assert compile_all() == {}
    assert f"removed the lock of an interrupted compilation: {lock}" in heard.told
    assert missing(NEEDED, os.environ) == []


def test_a_compiling_process_that_is_killed_leaves_no_lock_and_another_does_its_work(
    root: Path, compile_all: Compile, heard: Heard, wait_until: Callable[..., None]
) -> None:
    def kill() -> None:
        wait_until(lambda: list(root.glob("*/lock")))
        for process in living_children("standin_compiler"):
            process.kill()

    threading.Thread(target=kill).start()
    assert compile_all() == {}
    assert any(line.endswith("could not be compiled: the compilation was killed by SIGKILL") for line in heard.told)
    assert missing(NEEDED, os.environ) == []
    assert list(root.glob("*/lock")) == []


KILLED = "c++: fatal error: Killed signal terminated program cc1plus"


def test_a_compiler_that_fails_is_told_with_its_kernel_and_its_word(
    root: Path, compile_all: Compile, heard: Heard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DeepSpeed, torch and ninja are the real ones; the compiler of one kernel is killed."""
    compiler = tmp_path / "c++"
    wrong = "x.cpp:1: fatal error: no luck today"
    fails = f"case \"$*\" in *cpu_adam*) echo '{KILLED}';; *) echo '{wrong}';; esac >&2; exit 1"
    compiler.write_text(f'#!/bin/sh\ncase "$1" in -*ersion) exec c++ "$1";; esac\n{fails}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(kernels, "MODULE", "zerobench.rank.loop.compile_kernels")
    failures = compile_all()
    advice = " (host memory ran out? set MAX_JOBS=1 to compile one file at a time)"
    assert [failure.message for failure in failures.values()] == [
        f"DeepSpeed's kernel deepspeed_shm_comm could not be compiled: {wrong}",
        f"DeepSpeed's kernel cpu_adam could not be compiled: {KILLED}{advice}",
    ]
    assert list(failures) == NEEDED
    assert all("RuntimeError" in (failure.evidence or "") for failure in failures.values())
    assert heard.told == [failure.message for failure in failures.values()]
    assert list(root.glob("*/lock")) == []


@pytest.mark.parametrize(("num_gpus", "named"), [(1, "9.0"), (0, "9.0a")])
def test_architectures_that_deepspeed_cannot_read_are_named_otherwise_which_is_said_once(
    root: Path,
    zero1: tuple[TrialSpec, TrialFolder],
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
    num_gpus: int,
    named: str,
) -> None:
    monkeypatch.setenv(ARCHITECTURES, "9.0a")
    executor = StandinExecutor(2, num_gpus, worker_module="standin_worker")
    assert compile_first([zero1], executor, Stop(), heard) == {}
    assert (root / "cpu_adam" / "cpu_adam.so").read_text() == named
    changed = f"{ARCHITECTURES} is 9.0a, which DeepSpeed's builder cannot read: its kernels are compiled for 9.0"
    assert [line for line in heard.told if line.startswith(ARCHITECTURES)] == [changed] * num_gpus
    assert os.environ[ARCHITECTURES] == "9.0a"


def test_a_compiling_process_that_cannot_even_begin_fails_what_it_was_to_compile(
    root: Path, compile_all: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MODULE", "a_module_that_does_not_exist")
    failures = compile_all()
    assert not root.exists()
    assert list(failures) == NEEDED
    assert "No module named a_module_that_does_not_exist" in (failures["cpu_adam"].evidence or "")
    assert failures["cpu_adam"].message.endswith("could not be compiled: the compilation exited with 1")


def test_a_kernel_that_fails_fails_the_trials_that_need_it_and_no_other(
    root: Path, make_trial: MakeTrial, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MODULE", "a_module_that_does_not_exist")
    plan = [make_trial("needs", gpus_per_node=1, strategy="zero1"), make_trial("needs none", gpus_per_node=1)]
    result = run_sweep(
        [PlannedTrial(trial=trial) for trial in plan],
        {"name": "kernels"},
        environment={},
        reports=tmp_path / "reports",
        executor=EXECUTOR,
        observer=heard,
    )
    records = {one.spec.model.name: one.record for one in load_run(result.folder.path).trials()}
    assert not root.exists()
    assert {name: record.status for name, record in records.items()} == {
        "needs": Status.CRASH,
        "needs none": Status.COMPLETED,
    }
    assert (records["needs"].reason or "").startswith("DeepSpeed's kernel deepspeed_shm_comm could not be compiled: ")
    assert result.exit_code == 1
    assert heard.told[-2:] == ["trial 1 of 2", "trial 2 of 2"]
    assert not any(line.startswith("trial") for line in heard.told[:-2])


def test_the_runner_of_ranks_elsewhere_compiles_nothing(make_trial: MakeTrial, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a slots=1\nb slots=1\n")
    two_nodes = make_trial("elsewhere", strategy="zero1", num_nodes=2, gpus_per_node=1)
    assert LocalExecutor(2, 0).compiles_for(make_trial("here", strategy="zero1"))
    assert not LocalExecutor(2, 0, hostfile=hostfile).compiles_for(two_nodes)
