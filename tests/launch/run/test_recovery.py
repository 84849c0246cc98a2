"""What becomes of a trial with a checkpoint whose launches do not both go well; the launches are played."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools.known import known
from tests.tools.rank_records import rank_record, trial_record
from zerobench.common.vocabulary import Phase, Status
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.recovery import run_twice
from zerobench.launch.run.stop import Stop
from zerobench.records.checkpoint_files import Position, checkpoints_folder, last, unfinished, whole
from zerobench.records.folder import RunFolder, TrialFolder
from zerobench.records.records import CheckpointTransfer, PhaseMark, TrialRecord

STEPS = {"warmup": 0, "memory": 1, "timed": 4}
FAULT: dict[str, Any] = {"fault": {"rank": 0, "step": 5}}


def spec(strategy: str = "ddp", **checkpoint: Any) -> TrialSpec:
    asked = {"every_steps": 2} | checkpoint
    return TrialSpec.model_validate(
        {"model": resolve_model("llama-10m"), "strategy": strategy, "steps": STEPS, "checkpoint": asked}
    )


def ended(trial: TrialSpec, status: Status, **fields: Any) -> TrialRecord:
    return trial_record("run", trial, status, **fields)


def leave_checkpoint(trial: TrialSpec, folder: TrialFolder, step: int) -> None:
    path = whole(checkpoints_folder(trial, folder), step)
    path.mkdir(parents=True)
    (path / "position.json").write_text(Position(step=step, losses=[2.0] * step).model_dump_json())


def leave_rank(trial: TrialSpec, folder: TrialFolder, **fields: Any) -> None:
    record = rank_record(trial.trial_id, **fields)
    folder.rank_record(0).write_text(record.model_dump_json())


Launch = Callable[[TrialSpec, TrialFolder], TrialRecord]


def run(trial: TrialSpec, folder: Path, *launches: Launch) -> TrialRecord:
    left = iter(launches)

    def launch(asked: TrialSpec, where: TrialFolder) -> TrialRecord:
        played = next(left)
        return played(asked, where)

    return run_twice(trial, TrialFolder(folder), "run", launch, Stop())


def saving(status: Status = Status.COMPLETED, *, killed: bool = False, step: int = 4) -> Launch:
    """A first launch that saved at `step`."""

    def launch(trial: TrialSpec, folder: TrialFolder) -> TrialRecord:
        leave_checkpoint(trial, folder, step)
        leave_rank(trial, folder, killed_at_s=1000.0 if killed else None)
        return ended(trial, status, reason="no reason" if status is Status.COMPLETED else "it fell", ended_at_s=1002.0)

    return launch


def resuming(status: Status = Status.COMPLETED, **fields: Any) -> Launch:
    def launch(trial: TrialSpec, folder: TrialFolder) -> TrialRecord:
        assert folder.resume_from.exists()
        load = CheckpointTransfer(
            kind="load",
            step=4,
            start_s=1010.0,
            seconds=1.0,
            own_s=1.0,
            size_bytes=10,
            rss_before_bytes=None,
            rss_peak_bytes=None,
            device_before_bytes=None,
            device_peak_bytes=None,
        )
        leave_rank(trial, folder, checkpoints=[load], losses=[2.0] * 6)
        return ended(trial, status, **fields)

    return launch


def test_a_killed_rank_and_a_resumed_run_are_a_trial_that_completed(tmp_path: Path) -> None:
    record = run(spec(**FAULT), tmp_path, saving(Status.CRASH, killed=True), resuming())
    assert (record.status, record.reason, record.failure) == (Status.COMPLETED, None, None)
    assert record.recovery is not None
    assert (record.recovery.killed_at_s, record.recovery.killed_rank) == (1000.0, 0)
    assert (record.recovery.from_step, record.recovery.steps_done) == (4, 5)
    assert record.recovery.losses == [2.0] * 6
    assert record.recovery.first_ended_at_s == 1002.0


def test_a_first_launch_that_fails_by_itself_is_not_resumed(tmp_path: Path) -> None:
    record = run(spec(**FAULT), tmp_path, saving(Status.CRASH))
    assert (record.status, record.recovery) == (Status.CRASH, None)


def test_a_second_launch_that_fails_says_from_where_it_went_on(tmp_path: Path) -> None:
    record = run(spec(), tmp_path, saving(), resuming(Status.TIMEOUT, reason="not done after 900 s"))
    assert (record.status, record.reason) == (Status.TIMEOUT, "resumed from step 4: not done after 900 s")
    assert record.recovery is not None


def test_a_save_that_was_cut_short_is_no_checkpoint(tmp_path: Path) -> None:
    def cut_short(trial: TrialSpec, folder: TrialFolder) -> TrialRecord:
        unfinished(checkpoints_folder(trial, folder), 2).mkdir(parents=True)
        leave_rank(trial, folder, killed_at_s=1000.0)
        return ended(trial, Status.CRASH)

    record = run(spec(**FAULT), tmp_path, cut_short)
    assert record.status is Status.CRASH
    assert "the first launch left no complete checkpoint" in known(record.reason)


@pytest.mark.parametrize("keep", [False, True])
def test_files_go_when_all_is_measured_unless_they_are_to_stay(tmp_path: Path, keep: bool) -> None:
    trial = spec(folder=str(tmp_path / "elsewhere"), keep=keep)
    (tmp_path / "trial").mkdir()
    run(trial, tmp_path / "trial", saving(), resuming())
    kept = last(checkpoints_folder(trial, TrialFolder(tmp_path / "trial")))
    assert (kept is not None) is keep
    assert not (tmp_path / "trial" / "checkpoints").exists()


def test_a_second_run_leaves_the_checkpoints_that_the_first_one_kept(tmp_path: Path) -> None:
    trial = spec(folder=str(tmp_path / "elsewhere"), keep=True)
    kept = []
    for name in ("first", "second"):
        folder = RunFolder(tmp_path / name).trial(trial.trial_id)
        folder.path.mkdir(parents=True)
        run(trial, folder.path, saving(), resuming())
        kept.append(last(checkpoints_folder(trial, folder)) or tmp_path)
        (kept[-1] / name).touch()
    assert all((path / name).exists() for path, name in zip(kept, ("first", "second"), strict=True))


def test_runs_of_one_name_under_different_folders_share_no_place(tmp_path: Path) -> None:
    """Two that begin in the same second have one name."""
    trial = spec(folder=str(tmp_path / "elsewhere"))
    runs = [RunFolder(tmp_path / reports / "sweep_20261121-101500") for reports in ("a", "b")]
    assert len({checkpoints_folder(trial, run.trial(trial.trial_id)) for run in runs}) == 2


def test_nothing_is_left_of_a_run_at_a_place_where_all_its_checkpoints_went(tmp_path: Path) -> None:
    trial = spec(folder=str(tmp_path / "elsewhere"))
    folder = RunFolder(tmp_path / "a_run").trial(trial.trial_id)
    folder.path.mkdir(parents=True)
    run(trial, folder.path, saving(), resuming())
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_room_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    record = run(spec(), tmp_path)
    assert (record.status, record.rule) == (Status.SKIPPED, "checkpoint_room")
    assert "976.56 KiB free" in known(record.reason)


def test_a_conversion_that_fails_is_the_reason(tmp_path: Path) -> None:
    trial = spec("zero2", resume_world_size=1).model_copy(update={"gpus_per_node": 2})
    record = run(trial, tmp_path, saving())
    assert record.status is Status.CRASH
    assert "ds_to_universal exited with 1" in known(record.reason)


def test_a_step_of_the_second_launch_is_over_when_its_slowest_rank_and_last_phase_are(tmp_path: Path) -> None:
    def mark(step: int, end_s: float) -> PhaseMark:
        return PhaseMark(step_index=step, kind="timed", phase=Phase.STEP, start_s=end_s - 0.5, end_s=end_s)

    def slowest_first(trial: TrialSpec, folder: TrialFolder) -> TrialRecord:
        for rank, ends in enumerate(((3.0, 14.0, 16.0), (3.0, 13.0, 17.0))):
            marks = [mark(step, end_s) for step, end_s in zip((3, 4, 5), ends, strict=True)]
            record = rank_record(trial.trial_id, rank, marks=marks)
            folder.rank_record(rank).write_text(record.model_dump_json())
        return ended(trial, Status.COMPLETED)

    record = run(spec(**FAULT), tmp_path, saving(Status.CRASH, killed=True), slowest_first)
    assert known(record.recovery).steps_ended_at_s == [14.0, 17.0]
