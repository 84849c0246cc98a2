"""What a trial has no room for is named before anything is started: /dev/shm (the mounts are real ones) and weights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tools.known import known
from tests.tools.laid_out import trial_laid_out
from zerobench.common.vocabulary import Status
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run import room, runner
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.room import SEGMENT_BYTES, lacks_room_for_weights, lacks_shared_memory, shortage
from zerobench.launch.run.runner import run_sweep
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Failure
from zerobench.records.store import load_run

MakeTrial = Callable[..., TrialSpec]
SHOW = "from zerobench.launch.run.room import shortage; print(shortage(2).message)"


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
    ("mount", "what"), [("-o size=64k", "/dev/shm has 64.00 KiB free"), ("-o ro", "/dev/shm cannot be written")]
)
def test_a_small_and_a_read_only_mount_are_named_with_what_is_needed(mount: str, what: str) -> None:
    assert within(mount) == (
        f"{what}; DeepSpeed's shared-memory all-reduce for CPU ranks needs 132.01 MiB;"
        " in a container: docker run --shm-size=1g"
    )


def test_room_for_all_segments_is_enough(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert shortage(1, tmp_path) is None
    failure = known(shortage(2 * free // SEGMENT_BYTES, tmp_path))
    assert known(failure.bytes_asked) > known(failure.bytes_free) > 0


def test_only_measured_ranks_of_deepspeed_on_the_cpu_need_it(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "shortage", lambda ranks: ranks)

    def asked(executor: LocalExecutor, **fields: object) -> object:
        trial = make_trial("one", **fields)
        folder = trial_laid_out(tmp_path / f"{trial.trial_id}-{executor.num_gpus}", trial)
        return lacks_shared_memory(trial, folder, executor)

    assert asked(LocalExecutor(2, 0), strategy="zero1") == 2
    assert asked(LocalExecutor(2, 2), strategy="zero1") is None
    assert asked(LocalExecutor(2, 0), strategy="single") is None
    assert asked(LocalExecutor(2, 0), strategy="zero1", evidence="solo") is None


SHAPE = {"model": resolve_model("gpt2-10m")}
"""A model whose parameters are known, of the trial that the stand-in worker plays."""


def lacks_for_weights(trial: TrialSpec, folder: Path) -> bool:
    return lacks_room_for_weights(trial, TrialFolder(folder)) is not None


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


@pytest.mark.parametrize(("precision", "element_bytes"), [("bf16", 2), ("fp32", 4)])
def test_files_of_loaded_weights_take_an_element_of_the_trials_type_for_each_parameter(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch, precision: str, element_bytes: int
) -> None:
    trial = make_trial("one", weights="loaded-fp32", precision=precision).model_copy(update=SHAPE)
    counts = known(count_parameters(trial.model))
    with_free(monkeypatch, element_bytes * counts.total)
    assert not lacks_for_weights(trial, tmp_path)
    with_free(monkeypatch, element_bytes * counts.total - 1)
    assert lacks_for_weights(trial, tmp_path)


def test_drawn_and_simulated_weights_need_no_room(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, 0)
    assert not lacks_for_weights(make_trial("one").model_copy(update=SHAPE), tmp_path)
    for evidence, needs_room in (("simulated", False), ("solo", True)):
        trial = make_trial("one", weights="loaded", evidence=evidence).model_copy(update=SHAPE)
        assert lacks_for_weights(trial, tmp_path) is needs_room


def test_a_trial_that_lacks_either_is_not_started_and_says_why(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, 1024)
    monkeypatch.setattr(
        runner, "lacks_shared_memory", lambda trial, *_: None if trial.is_loaded else Failure(message="no segments")
    )
    trials = [make_trial("drawn"), make_trial("loaded", weights="loaded").model_copy(update=SHAPE)]
    ended = run_sweep(
        [PlannedTrial(trial=trial) for trial in trials],
        {"name": "a sweep"},
        environment={},
        reports=tmp_path,
        executor=LocalExecutor(2, 0, worker_module="no_worker"),
        observer=Observer(),
    )
    drawn, loaded = load_run(ended.folder.path).trials()
    assert (drawn.record.status, drawn.record.reason, drawn.ranks) == (Status.CRASH, "no segments", ())
    assert (loaded.record.status, loaded.ranks) == (Status.CRASH, ())
    assert "has 1.00 KiB free, their files need" in (loaded.record.reason or "")
