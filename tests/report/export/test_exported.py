"""What is exported of a trial, whichever tool it goes to."""

from itertools import pairwise

from tests.report.export.at_hand import trials_frame
from tests.report.sample_run import spec
from zerobench.common.vocabulary import Place
from zerobench.records import store
from zerobench.report.export.exported import ExportRow, exported_trials, settings


def test_every_ended_trial_is_exported_in_the_order_of_the_plan(run: store.Run, exported: list[ExportRow]) -> None:
    assert [trial.trial.trial_id for trial in exported] == [entry.trial_id for entry in run.plan.trials]


def test_trials_are_read_one_at_a_time(run: store.Run) -> None:
    first = next(exported_trials(run))
    assert first.trial.spec.strategy == "zero1"


def test_figures_are_those_of_the_trials_table(run: store.Run, exported: list[ExportRow]) -> None:
    table = trials_frame(run.trials())
    for trial, (_, row) in zip(exported, table.iterrows(), strict=True):
        known = {figure.column: value for figure, value in trial.figures.items()}
        told = {name: float(row[name]) for name in known}
        assert known == told
    assert {figure.column for figure in exported[0].figures} >= {"tokens_per_s", "device_peak_bytes", "loss_last"}


def test_what_is_not_available_is_left_out(exported: list[ExportRow]) -> None:
    failed = exported[2]
    assert {figure.column for figure in failed.figures} == {"num_params"}
    assert (failed.peaks, failed.steps) == ({}, [])


def test_categories_sum_to_the_peak_of_the_rank_that_has_the_most(exported: list[ExportRow]) -> None:
    peak = exported[0].peaks[Place.DEVICE]
    assert sum(peak.categories.values()) == peak.total_bytes > 0


def test_step_times_stand_at_the_timed_steps_and_losses_at_all(exported: list[ExportRow]) -> None:
    steps = exported[0].steps
    assert [point.step_index for point in steps] == list(range(9))
    assert [point.step_index for point in steps if point.step_s is not None] == [3, 4, 5, 6, 7]
    assert all(point.loss is not None for point in steps)
    assert all(later.at_s > earlier.at_s for earlier, later in pairwise(steps))


def test_what_a_sweep_wrote_that_has_no_utf_8_form_is_replaced() -> None:
    odd = spec("zero1", ds_config={"comment": "half a pair: \ud800", "huge": 10**40})
    told = settings(odd)
    assert (told["ds_config.comment"], told["ds_config.huge"]) == ("half a pair: ?", str(10**40))
