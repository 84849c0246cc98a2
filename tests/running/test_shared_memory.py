"""A /dev/shm that is too small or cannot be written is named before ranks hang over it; the mounts are real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zerobench.ds_config import build_ds_config
from zerobench.folder import TrialFolder
from zerobench.records import Failure, Status
from zerobench.running import runner, shared_memory
from zerobench.running.executor import LocalExecutor
from zerobench.running.observer import Observer
from zerobench.running.runner import run_sweep
from zerobench.running.setup import lay_out_trial
from zerobench.running.shared_memory import SEGMENT_BYTES, lacks_shared_memory, shortage
from zerobench.spec.expand import PlannedTrial
from zerobench.spec.trial import TrialSpec
from zerobench.store import load_run

SHOW = "from zerobench.running.shared_memory import shortage; print(shortage(2).message)"


def within(mount: str) -> str:
    """What is said of two ranks where /dev/shm is mounted so, in a mount namespace that ends with the question."""
    script = f'mount -t tmpfs {mount} tmpfs /dev/shm && exec "$0" -c "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, sys.executable, SHOW]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if said.returncode and ("unshare" in said.stderr or "mount" in said.stderr):
        pytest.skip(f"nothing may be mounted here: {said.stderr.strip()}")
    assert (said.returncode, said.stderr) == (0, "")
    return said.stdout.rstrip("\n")


@pytest.mark.parametrize(
    ("mount", "what"),
    [("-o size=64k", "/dev/shm has 64.00 KiB free"), ("-o ro", "/dev/shm cannot be written")],
)
def test_a_small_and_a_read_only_mount_are_named_with_what_is_needed(mount: str, what: str) -> None:
    assert within(mount) == (
        f"{what}; DeepSpeed's shared-memory all-reduce for CPU ranks needs 132.01 MiB;"
        " in a container: docker run --shm-size=1g"
    )


def test_room_for_all_segments_is_enough(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert shortage(1, tmp_path) is None
    failure = shortage(2 * free // SEGMENT_BYTES, tmp_path)
    assert failure is not None
    assert failure.bytes_asked is not None
    assert failure.bytes_free is not None
    assert failure.bytes_asked > failure.bytes_free > 0


def test_only_measured_ranks_of_deepspeed_on_the_cpu_need_it(
    tmp_path: Path, make_trial: Callable[..., TrialSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "shortage", lambda ranks: ranks)

    def asked(executor: LocalExecutor, **fields: object) -> object:
        trial = make_trial("one", **fields)
        folder = TrialFolder(tmp_path / f"{trial.trial_id}-{executor.num_gpus}")
        lay_out_trial(folder, trial, build_ds_config(trial) if trial.zero_stage is not None else None)
        return lacks_shared_memory(trial, folder, executor)

    assert asked(LocalExecutor(2, 0), strategy="zero1") == 2
    assert asked(LocalExecutor(2, 2), strategy="zero1") is None
    assert asked(LocalExecutor(2, 0), strategy="single") is None
    assert asked(LocalExecutor(2, 0), strategy="zero1", evidence="solo") is None


def test_a_trial_that_lacks_it_is_not_started_and_says_why(
    tmp_path: Path, make_trial: Callable[..., TrialSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = Failure(message="/dev/shm has 64.00 KiB free")
    monkeypatch.setattr(runner, "lacks_shared_memory", lambda *_: lacks)
    ended = run_sweep(
        [PlannedTrial(trial=make_trial("one"))],
        sweep_name="a sweep",
        sweep={"name": "a sweep"},
        environment={},
        reports=tmp_path,
        executor=LocalExecutor(2, 0, worker_module="no_worker"),
        observer=Observer(),
    )
    [trial] = load_run(ended.folder.path).trials()
    assert (trial.record.status, trial.record.reason) == (Status.CRASH, lacks.message)
    assert not trial.ranks
