"""Weights that are loaded are written first: where the disk has no room for them, nothing is started."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from zerobench.folder import TrialFolder
from zerobench.records import Status
from zerobench.running.executor import LocalExecutor
from zerobench.running.observer import Observer
from zerobench.running.runner import run_sweep
from zerobench.running.weights_room import lacks_room_for_weights
from zerobench.spec.expand import PlannedTrial
from zerobench.spec.parameters import count_parameters
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import TrialSpec
from zerobench.store import load_run

MakeTrial = Callable[..., TrialSpec]
SHAPE = {"model": resolve_model("gpt2-10m")}
"""A model whose parameters are known, of the trial that the stand-in worker plays."""


def lacks(trial: TrialSpec, folder: Path) -> bool:
    return lacks_room_for_weights(trial, TrialFolder(folder)) is not None


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


@pytest.mark.parametrize(("precision", "element_bytes"), [("bf16", 2), ("fp32", 4)])
def test_their_files_take_an_element_of_the_trials_type_for_each_parameter(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch, precision: str, element_bytes: int
) -> None:
    trial = make_trial("one", weights="loaded-fp32", precision=precision).model_copy(update=SHAPE)
    counts = count_parameters(trial.model)
    assert counts is not None
    with_free(monkeypatch, element_bytes * counts.total)
    assert not lacks(trial, tmp_path)
    with_free(monkeypatch, element_bytes * counts.total - 1)
    assert lacks(trial, tmp_path)


def test_drawn_and_simulated_weights_need_none(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, 0)
    assert not lacks(make_trial("one").model_copy(update=SHAPE), tmp_path)
    for evidence, needs_room in (("simulated", False), ("solo", True)):
        trial = make_trial("one", weights="loaded", evidence=evidence).model_copy(update=SHAPE)
        assert lacks(trial, tmp_path) is needs_room


def test_a_trial_without_room_for_them_is_not_started_and_says_why(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, 1024)
    ended = run_sweep(
        [PlannedTrial(trial=make_trial("one", weights="loaded").model_copy(update=SHAPE))],
        sweep_name="a sweep",
        sweep={"name": "a sweep"},
        environment={},
        reports=tmp_path,
        executor=LocalExecutor(2, 0, worker_module="no_worker"),
        observer=Observer(),
    )
    [trial] = load_run(ended.folder.path).trials()
    assert trial.record.status is Status.CRASH
    assert "has 1.00 KiB free, their files need" in (trial.record.reason or "")
    assert not trial.ranks
