"""The figures of several runs together."""

from pathlib import Path

from tests.report.sample_run import completed_trial, spec, write_run
from zerobench.config.trial.trial import OwnScript
from zerobench.records.store import load_run
from zerobench.report.figures.run.runs import run_figures


def test_runs_of_one_script_are_named_by_what_each_of_them_did(tmp_path: Path) -> None:
    for strategy, stage in (("zero2", 2), ("zero3", 3)):
        own = spec(strategy, own=OwnScript(name="train"), ds_config={"zero_optimization.stage": stage})
        write_run(tmp_path / strategy, [completed_trial(own)], samples=False)
    found = run_figures([load_run(tmp_path / name) for name in ("zero2", "zero3")])
    assert [one.label for one in found.figures] == ["zero2", "zero3"]
