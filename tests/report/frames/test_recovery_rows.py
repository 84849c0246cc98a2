"""What a trial that was saved and resumed leaves in the frame of checkpoints."""

from __future__ import annotations

import dataclasses

import pytest

from tests.report.sample_run import SampleTrial, completed_trial, spec
from tests.report.test_recovery import EVERY, MIB, recovered
from zerobench.records import Status
from zerobench.report.frames.recovery_rows import ResumedRow, Row
from zerobench.report.recovery import resumed
from zerobench.report.trials import LossesOnly


def row_of(trial: SampleTrial) -> Row:
    [row] = ResumedRow.of(trial, LossesOnly.of(trial))
    return row.judged([LossesOnly.of(trial)])


def test_a_row_has_each_figure_of_the_save_and_of_the_load() -> None:
    made = recovered(EVERY, convert_s=3.0)
    found = row_of(made)
    told = resumed(made, ())
    assert told is not None
    assert told.save is not None
    assert told.load is not None
    assert (found["run_id"], found["trial_id"]) == (made.record.run_id, made.record.trial_id)
    for name, transfers in (("save", told.save), ("load", told.load)):
        assert found[f"{name}_s"] == transfers.seconds
        assert found[f"{name}_bytes_per_s"] == transfers.bytes_per_s == transfers.size_bytes / transfers.seconds
        assert found[f"{name}_host_bytes"] == transfers.host_bytes
        assert found[f"{name}_device_bytes"] is transfers.device_bytes is None
    assert (found["save_s"], found["load_s"]) == (3.0, 4.0)
    assert (found["save_host_bytes"], found["load_host_bytes"]) == (50 * MIB, 200 * MIB)
    assert found["size_bytes"] == told.save.size_bytes
    assert (found["num_saves"], found["resumed_world_size"], found["from_step"]) == (3, 2, 6)
    assert found["convert_s"] == 3.0
    assert found["formula_bytes"] == told.formula_bytes
    assert (found["steps_lost"], found["recover_s"], found["restart_s"]) == (
        told.steps_lost,
        told.recover_s,
        told.restart_s,
    )


def test_its_distance_is_that_from_the_same_work_without_a_fault() -> None:
    made = recovered(EVERY)
    assert row_of(made)["loss_difference"] == 0
    assert made.record.recovery is not None
    off = [*made.record.recovery.losses[:-1], made.record.recovery.losses[-1] + 0.25]
    recovery = made.record.recovery.model_copy(update={"losses": off})
    apart = dataclasses.replace(made, record=made.record.model_copy(update={"recovery": recovery}))
    assert row_of(apart)["loss_difference"] == pytest.approx(0.25)


def test_a_trial_without_a_second_launch_has_no_row() -> None:
    plain = completed_trial(spec("zero1", gpus_per_node=2, checkpoint=EVERY))
    assert list(ResumedRow.of(plain, LossesOnly.of(plain))) == []


def test_a_trial_that_never_saved_has_no_figures_of_saves() -> None:
    made = recovered(EVERY)
    ranks = [rank.model_copy(update={"checkpoints": []}) for rank in made.ranks]
    found = row_of(dataclasses.replace(made, ranks=ranks))
    names = ("size_bytes", "save_s", "save_bytes_per_s", "save_host_bytes", "save_device_bytes")
    assert [found[name] for name in names] == [None] * len(names)
    assert found["load_s"] == 4.0


def test_a_trial_that_crashed_again_after_its_resume_has_no_row() -> None:
    made = recovered(EVERY)
    crashed = dataclasses.replace(made, record=made.record.model_copy(update={"status": Status.CRASH}))
    assert list(ResumedRow.of(crashed, LossesOnly.of(crashed))) == []
