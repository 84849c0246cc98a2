"""The judgement says how far predictions were off, which were too small, and what was wrong about fitting."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.csv_rows import as_csv, from_csv
from benchmarks.gpu_campaign.cell_figures import NEEDED, Figure, figures_of_cells
from benchmarks.gpu_campaign.judgement import as_markdown, join
from benchmarks.gpu_campaign.predictions import judge
from benchmarks.launches import Bench
from tests.config.machines import GPUS
from tests.report.sample_run import completed_trial, failed_trial, spec, write_run
from tests.tools.imports import ROOT
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence, PredictionSpec
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Failure, NvmlDevice, NvmlSummary
from zerobench.records.store import load_run
from zerobench.records.trials import Trial

GIB = 2**30
PEAK = Figure("work", "7B zero1 n8", 0, "steady", "backward", "device", "peak", 1000)


def test_figures_come_back_from_their_file_as_they_went() -> None:
    figures = [PEAK, replace(PEAK, quantity=NEEDED, step="", phase="")]
    assert from_csv(Figure, as_csv(Figure, figures)) == figures
    with pytest.raises(UserError, match="columns"):
        from_csv(Figure, "a,b\n1,2\n")


def test_a_figure_meets_its_own_prediction_alone() -> None:
    other = replace(PEAK, config_hash="other")
    [joined] = join([PEAK, other], [replace(PEAK, bytes=800)])
    assert (joined.predicted, joined.error) == (PEAK, 0.25)


def test_goals_say_reached_or_missed() -> None:
    text = as_markdown([PEAK], [], [replace(PEAK, bytes=900)], "abc on today")
    assert "| worst error of peak | 11.111% | 3.0% | MISSED |" in text
    assert "predictions committed abc on today" in text
    assert "| worst error of peak | 0.000% | 3.0% | reached |" in as_markdown([PEAK], [], [PEAK], "abc")


def test_what_was_predicted_too_small_is_named_and_live_bytes_are_not() -> None:
    measured = [replace(PEAK, bytes=2000), replace(PEAK, quantity="live", bytes=2000)]
    text = as_markdown([PEAK, replace(PEAK, quantity="live")], [], measured, "abc")
    assert "## Predicted too small: 1 figures" in text
    assert "| 7B zero1 n8 | steady backward | peak | -50.000% | 1,000 | 2,000 |" in text


def _ran(*, out_of_memory: bool, **how: object) -> Trial:
    asked = spec("zero1").model_copy(update=how)
    trial = failed_trial(asked, Failure(message="no room")) if out_of_memory else completed_trial(asked)
    device = NvmlDevice(
        gpu_uuid="GPU-1",
        name="NVIDIA H200",
        index=0,
        total_bytes=140 * GIB,
        **dict.fromkeys(("reserved_bytes", "baseline_used_bytes", "peak_used_bytes", "energy_joules")),
        mean_power_watts=None,
    )
    record = trial.record.model_copy(update={"nvml": [NvmlSummary(hostname="a", available=True, devices=[device])]})
    return replace(trial, record=record)


@pytest.mark.parametrize(
    ("needed_gib", "out_of_memory", "verdict"),
    [(100, True, "MISSED: said to fit"), (200, True, "as predicted"), (200, False, "FALSE REFUSAL")],
)
def test_cells_that_do_not_fit_are_held_against_what_was_said(
    needed_gib: int, out_of_memory: bool, verdict: str
) -> None:
    trial = _ran(out_of_memory=out_of_memory)
    said = Figure(trial.spec.config_hash, "7B zero1 n1", 0, "", "", "device", NEEDED, needed_gib * GIB)
    [line] = [line for line in as_markdown([said], [trial], [], "abc").splitlines() if "7B zero1 n1" in line]
    assert verdict in line


def test_a_run_on_emulated_gpus_says_so_and_is_held_against_the_catalogues_memory() -> None:
    gpu = PredictionSpec(gpu="A100 SXM 40GB")
    trial = _ran(out_of_memory=True, evidence=Evidence.EMULATED, prediction=gpu)
    said = Figure(trial.spec.config_hash, "7B zero1 n1", 0, "", "", "device", NEEDED, 100 * GIB)
    text = as_markdown([said], [trial], [], "abc")
    assert "# Predicted by simulation, then played on an emulated GPU" in text
    assert "as predicted" in next(line for line in text.splitlines() if "7B zero1 n1" in line)


def test_a_cell_that_was_said_to_fit_and_did_is_not_listed() -> None:
    trial = _ran(out_of_memory=False)
    said = Figure(trial.spec.config_hash, "7B zero1 n1", 0, "", "", "device", NEEDED, 100 * GIB)
    assert "None." in as_markdown([said], [trial], [], "abc")


def test_a_run_on_gpus_is_judged_by_the_predictions_beside_its_sweep(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [completed_trial(spec("zero1"))], samples=False).path
    predicted = as_csv(Figure, figures_of_cells(list(load_run(run).trials())))
    (tmp_path / "cells_predicted.csv").write_text(predicted, encoding="utf-8")
    judge(tmp_path / "cells.yaml", str(run), tmp_path, uncommitted=True)
    text = (tmp_path / "cells_judged.md").read_text(encoding="utf-8")
    assert "1 cells ran, 1 completed and were predicted" in text
    assert "| worst error of peak | 0.000% | 3.0% | reached |" in text


def test_bare_loops_find_packages_beside_the_interpreters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trial = spec("zero1")
    bench = Bench(tmp_path, GPUS, trial.model, steps=1)
    for here, there in (("/packages", [str(ROOT), "/packages"]), ("", [str(ROOT)])):
        monkeypatch.setenv("PYTHONPATH", here)
        assert bench._environment(trial, TrialFolder(tmp_path))["PYTHONPATH"].split(":") == there
