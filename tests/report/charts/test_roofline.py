"""The chart of kernels against the roofline."""

from pathlib import Path

import pytest

from tests.estimate.time.predicted_trials import predicted, traced
from tests.report.charts.drawing import said, texts
from tests.report.sample_run import write_run
from zerobench.records import store
from zerobench.report.charts import roofline
from zerobench.report.figures.run.runs import run_figures


def test_the_fastest_trial_with_a_trace_is_drawn_with_all_its_computing(tmp_path: Path) -> None:
    trials = [predicted(strategy="zero1"), traced(predicted(num_nodes=64)), traced(predicted(num_nodes=4))]
    run = store.load_run(write_run(tmp_path / "run", trials, samples=False).path)
    figure = roofline.figure(run_figures([run]))
    assert figure is not None
    assert figure.caption.startswith("zero3 n4x8, expected")
    shares = figure.table["share of computing"].str.rstrip(" %").astype(float)
    assert shares.sum() == pytest.approx(100, abs=1)
    assert {"element-wise", "update", "attention backward"} <= set(figure.table["kernels"])
    assert "matrix products" in texts(figure)
    assert any(text.startswith("attention backward: ") and "of computing" in text for text in said(figure))
