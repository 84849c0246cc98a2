"""A plan's rows as numbers."""

import pytest

from tests.report.documents.run import cluster, plan_trials
from zerobench.report.documents.plan_frame import plan_frame
from zerobench.report.figures.make import trial_figures


def test_each_row_is_named_and_has_the_figures_of_the_plan() -> None:
    place = cluster()
    rows = [trial_figures(trial, trial.spec.trial_id, place) for trial in plan_trials(place) if trial.ranks]
    frame = plan_frame(rows)
    assert list(frame.index) == [row.spec.trial_id for row in rows]
    assert frame["needed_bytes"].tolist() == [row.device.needed_bytes for row in rows]
    assert frame["host_needed_bytes"].tolist() == [row.host.needed_bytes for row in rows]
    assert frame["fits"].tolist() == [row.fits for row in rows]
    known = [row.expected.step_s for row in rows if row.expected is not None]
    assert frame["expected_step_s"].dropna().tolist() == known
    assert known
    assert all(frame["expected_step_low_s"].dropna() < frame["expected_step_high_s"].dropna())
    told = [row for row in rows if row.expected_tokens_per_s is not None and row.trial.ranks[0].flops_per_step]
    peak = 1e12 * {str(dtype): rate for dtype, rate in place.gpu.peak_tflops.items()}[told[0].trial.spec.precision]
    flops = [row.trial.ranks[0].flops_per_step or 0 for row in told]
    seconds = frame.loc[[row.label for row in told], "expected_step_s"].tolist()
    by_hand = [work / peak / took for work, took in zip(flops, seconds, strict=True)]
    assert frame["expected_mfu"].dropna().tolist() == pytest.approx(by_hand)
    assert frame["expected_mfu"].dropna().between(0, 1).all()
    assert told


def test_a_plan_without_a_row_is_an_empty_frame_of_the_same_columns() -> None:
    place = cluster()
    rows = [trial_figures(trial, "", place) for trial in plan_trials(place) if trial.ranks]
    assert list(plan_frame([]).columns) == list(plan_frame(rows).columns)
    assert plan_frame([]).empty
