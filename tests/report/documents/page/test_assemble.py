"""The top of a page says with which releases its predictions were made."""

from pathlib import Path

import pytest

from tests.report.predicted_trial import asked, trial
from tests.report.sample_run import write_run
from zerobench.records.store import load_run
from zerobench.report.documents.page.assemble import facts
from zerobench.report.figures.run.runs import run_figures


@pytest.mark.parametrize(("evidence", "is_said"), [("simulated", True), ("formula", False)])
def test_predictions_of_an_engine_name_its_releases(tmp_path: Path, evidence: str, is_said: bool) -> None:
    folder = write_run(tmp_path / "run", [trial(asked(evidence=evidence))])
    folder.environment.write_text('{"versions": {"deepspeed": "0.19.8", "torch": "2.13.0", "transformers": "5.23.0"}}')
    runs = [load_run(folder.path)]
    told = dict(facts(runs, run_figures(runs).figures))
    said = "DeepSpeed 0.19.8, torch 2.13.0, transformers 5.23.0" if is_said else None
    assert told.get("Predicted with") == said
