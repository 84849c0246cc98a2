"""Expected speeds in charts: points with how sure they are."""

from pathlib import Path

import pytest

from tests.estimate.time.predicted_trials import expected, predicted
from tests.report.charts.drawing import root_of, said
from tests.report.sample_run import SampleTrial, completed_trial, spec, write_run
from tests.tools.known import known
from zerobench.records import store
from zerobench.report.charts import efficiency, pareto
from zerobench.report.figures.run.runs import RunFigures, run_figures
from zerobench.report.tables.figure import Figure

TOKENS = 2048


def runs(folder: Path, *trials: SampleTrial) -> RunFigures:
    return run_figures([store.load_run(write_run(folder / "run", list(trials), samples=False).path)])


def shapes(figure: Figure | None, kind: str) -> int:
    """How many marks of a kind are drawn, axes left out."""
    groups = [group.attrib.get("class", "") for group in root_of(figure).iter()]
    return sum(kind in name and "role-mark" in name for name in groups)


def test_a_predicted_trial_stands_at_its_expected_speed_between_the_ends_of_its_interval(tmp_path: Path) -> None:
    trials = [predicted(strategy="zero1"), predicted()]
    figure = known(pareto.figure(runs(tmp_path, *trials)))
    table = figure.table.set_index("trial")
    for trial in trials:
        step, row = expected(trial), table.loc[trial.spec.strategy]
        shown = [float(str(row[name]).replace(",", "")) for name in ("tokens/s per GPU", "low", "high")]
        assert shown == pytest.approx([TOKENS / step.step_s, TOKENS / step.high_s, TOKENS / step.low_s], abs=0.06)
        rates = [f"{TOKENS / seconds:,.0f}" for seconds in (step.step_s, step.high_s, step.low_s)]
        assert any("{} tokens/s per GPU ({} to {})".format(*rates) in text for text in said(figure))
    assert "All speeds are expected, not measured; bars: 80% interval." in figure.caption
    assert shapes(figure, "mark-rule") == 1


def test_a_measured_trial_has_no_interval(tmp_path: Path) -> None:
    figure = known(pareto.figure(runs(tmp_path, completed_trial(spec("zero1", gpus_per_node=8)))))
    assert "expected" not in figure.caption
    assert "low" not in figure.table
    assert shapes(figure, "mark-rule") == 0


def test_scaling_of_expected_speeds_has_a_band(tmp_path: Path) -> None:
    trials = [predicted(num_nodes=nodes) for nodes in (1, 8, 64)]
    figure = known(efficiency.weak_figure(runs(tmp_path, *trials)))
    steps = [expected(trial) for trial in trials]
    shown = figure.table["efficiency (%)"].astype(float).tolist()
    assert shown == pytest.approx([100 * steps[0].step_s / step.step_s for step in steps], abs=0.06)
    low, high = (100 * steps[0].step_s / seconds for seconds in (steps[2].high_s, steps[2].low_s))
    ratio = 100 * steps[0].step_s / steps[2].step_s
    assert any(f"{ratio:.0f}% ({low:,.0f} to {high:,.0f}) on 512 ranks" in text for text in said(figure))
    assert "bands: 80% interval" in figure.caption
    assert shapes(figure, "mark-area") == 1
