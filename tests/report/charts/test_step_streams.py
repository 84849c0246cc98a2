"""The chart of streams over the expected step."""

from pathlib import Path

import pytest

from tests.estimate.time.predicted_trials import predicted, traced
from tests.report.sample_run import write_run
from zerobench.config.trial.trial import PredictionSpec
from zerobench.estimate.time.predicted_speed import predicted_timeline
from zerobench.records import store
from zerobench.report.charts import step_streams
from zerobench.report.figures.run.runs import run_figures


def test_lanes_of_trials_with_a_trace_are_drawn_and_told_in_seconds(tmp_path: Path) -> None:
    trial = traced(predicted(num_nodes=4))
    run = store.load_run(write_run(tmp_path / "run", [trial, predicted()], samples=False).path)
    found = step_streams.figure(run_figures([run]))
    step = predicted_timeline(trial)
    assert found is not None
    assert step is not None
    told = found.table.set_index("what")["share"].str.rstrip("%").astype(float)
    assert told.index[0] == "whole step"
    assert told["exposed"] == pytest.approx(100 * sum(step.exposed().values()) / step.step_s, abs=0.1)
    classes = ("products", "attention", "elementwise", "update", "waiting for the host")
    assert sum(told[name] for name in classes) == pytest.approx(told["compute"], abs=0.3)
    assert told["waiting for the host"] > 0, "stage 3 of one sequence"
    assert "exposed: 0 s to" in (found.svg or ""), "the first gather, which nothing runs beside"


@pytest.mark.parametrize(("played", "told"), [(3, "(3 of 8 micro-batches)"), (None, None)])
def test_a_panel_tells_that_some_micro_batches_of_an_accumulated_step_were_played(
    tmp_path: Path, played: int | None, told: str | None
) -> None:
    prediction = PredictionSpec(gpu="H100 SXM", micro_batches=played)
    trial = traced(predicted(gradient_accumulation_steps=8, prediction=prediction))
    found = step_streams.figure(run_figures([store.load_run(write_run(tmp_path / "run", [trial], samples=False).path)]))
    assert found is not None
    assert ("micro-batches)" in (found.svg or "")) == (told is not None)
    assert (told or "") in (found.svg or "")
