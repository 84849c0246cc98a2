"""Trials under the real deepspeed launcher, each ending in another way; all are run once, a few at a time."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.attempt import run_trial
from zerobench.launch.run.executor import Launch, LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import RunFolder, TrialFolder
from zerobench.records.progress import Progress
from zerobench.records.records import RankRecord, TrialRecord
from zerobench.records.swap_folder import swap_folder

WORKER = "standin_worker"
TIMEOUT_S = 25.0

NVME_FILE = "zero3_offload_optimizer_nvme.json"
"""A shipped configuration with a key that no trial without NVMe reads."""

CASES: dict[str, tuple[dict[int, str], str, dict[str, object]]] = {
    "hang": ({0: "wait_for_a_peer_that_never_comes", 1: "ignore_sigterm"}, WORKER, {"timeout_s": TIMEOUT_S}),
    "ended_by_us": (dict.fromkeys(range(2), "wait_for_a_peer_that_never_comes"), WORKER, {"timeout_s": TIMEOUT_S}),
    "completed": ({}, WORKER, {}),
    "crash": ({0: "wait_for_a_peer_that_never_comes", 1: "crash"}, WORKER, {}),
    "sigkill": ({0: "crash_when_a_peer_is_gone", 1: "die_by_sigkill"}, WORKER, {}),
    "no_record": ({0: "wait_for_a_peer_that_never_comes", 1: "exit_silently"}, WORKER, {}),
    "abort_at_exit": ({0: "abort_after_record"}, WORKER, {"strategy": "zero1", "ds_config_file": NVME_FILE}),
    "hang_at_exit": ({0: "hang_after_record"}, WORKER, {}),
    "helper": ({0: "leave_a_helper"}, WORKER, {}),
    "no_launcher": ({0: "kill_the_launcher", 1: "wait_for_a_peer_that_never_comes"}, WORKER, {}),
    "no_import": ({}, "standin_without_import", {}),
}
"""Those that wait for their limit begin first, and the others end meanwhile."""


class ExecutorOfShells(LocalExecutor):
    """An executor on whose nodes a shell writes how each rank ended, as in a Slurm step; here, of our own SIGKILL."""

    def launch(self, trial: TrialSpec, folder: TrialFolder) -> Launch:
        def elsewhere(verb: str, _mark: str) -> list[str]:
            if verb == "end":
                folder.rank_exit(1).write_text("137\n")
            return []

        return replace(super().launch(trial, folder), elsewhere=elsewhere)


@dataclass(frozen=True)
class Ended:
    """A trial that was run."""

    folder: TrialFolder
    record: TrialRecord

    def rank(self, rank: int) -> RankRecord:
        return RankRecord.model_validate_json(self.folder.rank_record(rank).read_bytes())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def leave_swap_files(trial: TrialSpec, run: Path) -> None:
    """What the same trial of a run that may still be going swapped, and what an earlier try of this one left."""
    for one in (run.with_name("another_run"), run):
        path = known(swap_folder(trial, RunFolder(one).trial(trial.trial_id)))
        Path(path).mkdir(parents=True)
        Path(path, "rank0.swp").touch()


@pytest.fixture(scope="module")
def ended(
    runs: Path, make_trial: Callable[..., TrialSpec], put: Callable[[TrialSpec, Path], TrialFolder]
) -> Iterator[dict[str, Ended]]:
    def one(name: str) -> Ended:
        acts, worker, fields = CASES[name]
        trial = make_trial(name, acts, **fields)
        if name == "completed":
            trial = trial.model_copy(update={"nvme_path": str(runs / "nvme")})
            leave_swap_files(trial, runs)
        folder = put(trial, runs)
        settle_s = 4.0 if name == "hang_at_exit" else 60.0
        executor_type = ExecutorOfShells if name == "ended_by_us" else LocalExecutor
        executor = executor_type(num_cpus=2, num_gpus=0, worker_module=worker, settle_s=settle_s)
        return Ended(folder, run_trial(trial, folder, "a_run", executor, Stop(), Observer()))

    with ThreadPoolExecutor(5) as pool:
        yield dict(zip(CASES, pool.map(one, CASES), strict=True))


def test_a_completed_trial_has_each_ranks_record(ended: dict[str, Ended]) -> None:
    record = ended["completed"].record
    assert (record.status, record.reason, record.exit_code) == (Status.COMPLETED, None, 0)
    assert (record.ranks_expected, record.ranks_reported, record.notes) == (2, 2, [])
    assert 0 < known(record.ended_at_s) - known(record.started_at_s) < 120


def test_a_trial_removes_its_own_swap_files_and_no_other_run_s(ended: dict[str, Ended], runs: Path) -> None:
    [left] = (runs / "nvme").rglob("*.swp")
    assert left.relative_to(runs / "nvme").parts[0].startswith("another_run-")
    assert len(list((runs / "nvme").iterdir())) == 1


def test_the_record_is_on_disk(ended: dict[str, Ended]) -> None:
    for one in at_least_one(ended.values()):
        assert TrialRecord.model_validate_json(one.folder.record.read_bytes()) == one.record


def test_the_environment_reaches_the_ranks(ended: dict[str, Ended]) -> None:
    assert ended["completed"].rank(1).device_name == "0"  # where the stand-in puts MALLOC_TOP_PAD_


def test_each_rank_has_a_log_of_its_own(ended: dict[str, Ended]) -> None:
    [log] = (ended["completed"].folder.path / "logs").glob("*_rank1.log")
    assert log.read_text() == "rank 1 of 2 begins\n"


def test_a_rank_that_the_runner_itself_had_to_kill_did_not_crash(ended: dict[str, Ended]) -> None:
    record = ended["ended_by_us"].record
    assert record.status is Status.TIMEOUT, record.reason


def test_a_crash_in_one_rank_comes_with_its_traceback(ended: dict[str, Ended]) -> None:
    record = ended["crash"].record
    assert record.status is Status.CRASH
    assert record.failure is not None
    assert record.failure.rank == 1
    assert 'int("the planted fault")' in (record.failure.traceback or "")
    assert record.reason == record.failure.message
    assert record.ranks_reported == 1


def test_a_hang_is_a_timeout_with_each_ranks_stack(ended: dict[str, Ended]) -> None:
    record = ended["hang"].record
    assert record.status is Status.TIMEOUT
    assert record.failure is not None
    assert sorted(record.failure.stacks) == ["0", "1"]
    for stack in record.failure.stacks.values():
        assert "in wait_for_a_peer_that_never_comes" in stack
    assert "in ignore_sigterm" in record.failure.stacks["1"]
    words = [Progress.model_validate_json(ended["hang"].folder.progress(rank).read_bytes()) for rank in (0, 1)]
    assert (
        known(record.ended_at_s) - max(word.updated_at_s for word in words) >= TIMEOUT_S
    )  # how much later is the load's
    assert (record.reason or "").startswith("no progress for 25 s: rank 0 in timed (step 4 of 8); rank 1 in timed")
    assert re.search(
        r"; the machine's load was \d+\.\d on \d+ cores; --set timeout_s=50 waits longer$", record.reason or ""
    )


def test_a_killed_rank_is_named_with_its_signal_and_not_the_peer_that_lost_it(ended: dict[str, Ended]) -> None:
    record = ended["sigkill"].record
    assert record.status is Status.CRASH
    assert known(record.failure).rank == 1
    assert record.reason == "rank 1 was killed by SIGKILL in timed (step 4 of 8) without a record"


def test_a_killed_launcher_is_named_and_not_its_status_of_0(ended: dict[str, Ended]) -> None:
    record = ended["no_launcher"].record
    assert (record.status, record.exit_code) == (Status.LAUNCHER_FAULT, 0)
    assert record.reason == (
        "the launcher exited with 0 before its ranks: it or one of its processes was killed,"
        " leaving rank 0 in timed (step 4 of 8); rank 1 in timed (step 4 of 8)"
    )


def test_a_rank_that_leaves_without_a_record_is_a_crash_with_its_exit_status(ended: dict[str, Ended]) -> None:
    record = ended["no_record"].record
    assert record.status is Status.CRASH
    assert record.reason == "rank 1 exited with 3 in timed (step 4 of 8) without a record"


def test_an_abort_after_the_records_is_completed_with_a_note(ended: dict[str, Ended]) -> None:
    record = ended["abort_at_exit"].record
    assert record.status is Status.COMPLETED
    assert any(re.search(r"launcher exited with \d+ after every rank had completed", note) for note in record.notes)


def test_the_record_says_which_keys_of_a_users_own_configuration_were_not_read(ended: dict[str, Ended]) -> None:
    said = ended["abort_at_exit"].record.notes[0]
    assert said.startswith(f"{NVME_FILE}: aio.queue_depth: not read by this trial: ")


def test_a_rank_that_hangs_after_its_record_does_not_hold_the_sweep_until_the_limit(ended: dict[str, Ended]) -> None:
    record = ended["hang_at_exit"].record
    assert record.status is Status.COMPLETED
    assert record.notes == ["the launcher did not exit and was killed"]


def test_a_worker_that_never_speaks_is_a_launcher_fault_with_the_last_words(ended: dict[str, Ended]) -> None:
    record = ended["no_import"].record
    assert record.status is Status.LAUNCHER_FAULT
    assert "a_module_that_does_not_exist" in (known(record.failure).evidence or "")


def test_a_helper_that_outlives_the_launcher_is_ended_and_noted(ended: dict[str, Ended]) -> None:
    record = ended["helper"].record
    assert record.status is Status.COMPLETED
    assert [note for note in record.notes if note.startswith("killed processes left by the launcher: ")]


def test_no_process_of_any_trial_is_left(
    ended: dict[str, Ended], runs: Path, marked_processes: Callable[[Path], list[psutil.Process]]
) -> None:
    assert len(ended) == len(CASES)
    assert marked_processes(runs) == []


def test_a_rank_killed_for_want_of_memory_is_typed_by_the_kernels_counter(
    tmp_path: Path, make_trial: Callable[..., TrialSpec], put: Callable[[TrialSpec, Path], TrialFolder]
) -> None:
    with small_control_group(limit_bytes=100_000_000) as group, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STANDIN_CGROUP", str(group))
        trial = make_trial("oom", {0: "crash_when_a_peer_is_gone", 1: "exhaust_host_memory"})
        folder = put(trial, tmp_path)
        record = run_trial(trial, folder, "a_run", LocalExecutor(2, 0, worker_module=WORKER), Stop(), Observer())
    assert record.status is Status.OUT_OF_HOST_MEMORY
    assert record.failure is not None
    assert record.failure.rank == 1
    assert "oom_kill" in (record.failure.evidence or "")


@contextlib.contextmanager
def small_control_group(limit_bytes: int) -> Iterator[Path]:
    """A memory control group below our own; where we may make none, the test is skipped with the reason."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    inside = {controllers: group.strip("/") for _, controllers, group in lines}
    mount = Path("/sys/fs/cgroup")
    first = "memory" in inside
    parent = mount / "memory" / inside["memory"] if first else mount / inside.get("", "")
    limit = "memory.limit_in_bytes" if first else "memory.max"
    path = parent / f"zerobench-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        (path / limit).write_text(str(limit_bytes))
    except OSError as error:
        path.rmdir()
        pytest.skip(f"no memory limit can be set here: {error}")
    try:
        yield path
    finally:
        path.rmdir()
