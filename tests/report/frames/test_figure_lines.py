"""What a trial that was saved, or whose batch grew, leaves for the tables, once all trials of its run are read."""

from __future__ import annotations

import dataclasses

import pytest

from tests.report.sample_run import SampleTrial, completed_trial, spec
from tests.report.test_batch_ramp import fixed, other, ramped
from tests.report.test_recovery import EVERY, recovered
from zerobench.records import Status
from zerobench.report.compared.rows import Key
from zerobench.report.frames.figure_lines import FigureLines, GatheredFigures
from zerobench.report.recovery import resumed
from zerobench.report.tables.model import TrialName
from zerobench.report.trials import LossesOnly


def gathered(*trials: SampleTrial) -> FigureLines:
    def name(key: Key) -> TrialName:
        return TrialName(*key, label=f"the label of {key[1]}", evidence="measured", gpu=None)

    found = GatheredFigures()
    losses = [LossesOnly.of(trial) for trial in trials]
    for trial, own in zip(trials, losses, strict=True):
        found.add(trial, own)
    found.end_run(losses)
    return found.lines(name)


def test_checkpoints_have_the_figures_of_the_trial_and_its_name() -> None:
    made = recovered(EVERY, convert_s=3.0)
    [line] = gathered(made).checkpoints
    told = resumed(made, ())
    assert told is not None
    assert line.figures == dataclasses.replace(told, loss_distance=0.0)
    assert line.trial.label == f"the label of {made.record.trial_id}"


def test_their_distance_is_that_from_the_same_work_without_a_fault() -> None:
    made = recovered(EVERY)
    assert made.record.recovery is not None
    off = [*made.record.recovery.losses[:-1], made.record.recovery.losses[-1] + 0.25]
    recovery = made.record.recovery.model_copy(update={"losses": off})
    apart = dataclasses.replace(made, record=made.record.model_copy(update={"recovery": recovery}))
    [line] = gathered(apart).checkpoints
    assert line.figures.loss_distance == pytest.approx(0.25)


def test_a_trial_without_a_second_launch_has_no_line() -> None:
    assert gathered(completed_trial(spec("zero1", gpus_per_node=2, checkpoint=EVERY))).checkpoints == []


def test_a_trial_that_crashed_again_after_its_resume_has_no_line() -> None:
    made = recovered(EVERY)
    crashed = dataclasses.replace(made, record=made.record.model_copy(update={"status": Status.CRASH}))
    assert gathered(crashed).checkpoints == []


def test_only_batches_that_grow_and_those_of_the_same_work_have_lines() -> None:
    found = [line.trial.trial_id for line in gathered(other(), fixed(), ramped()).batches]
    assert found == [fixed().record.trial_id, *[ramped().record.trial_id] * 3]
    assert gathered(other(), fixed()).batches == []


def test_what_has_neither_server_nor_stages_has_no_lines_of_them() -> None:
    found = gathered(completed_trial(spec("zero2")))
    assert (found.sides, found.stages) == ([], [])
