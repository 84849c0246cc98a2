"""`zerobench plan` with the real simulator: the real DeepSpeed engine on a GPU that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from zerobench.records import Place, StepKind
from zerobench.report.memory_view import model_states, peak_instant
from zerobench.store import load_run

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_plan_by_simulation_recommends_a_configuration_and_its_ledger_has_the_states(tmp_path: Path) -> None:
    words = ["--model", "gpt2-10m", "--gpus", "8", "--gpu", "a100", "--host-memory", "1TB", "--sequence-length", "256"]
    done = subprocess.run(
        [sys.executable, "-m", "zerobench", "plan", *words, "--stage", "3", "--write", "ds.json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Predicted (simulated): " in done.stdout
    assert json.loads((tmp_path / "ds.json").read_text())["zero_optimization"]["stage"] == 3
    [run] = (tmp_path / "reports").iterdir()
    ran = [trial for trial in load_run(run).trials() if trial.ranks]
    for rank in [trial.ranks[0] for trial in ran]:
        assert rank.parameters is not None
        share = rank.parameters.total / 8
        states = model_states(rank)
        assert states is not None
        assert 2 * share <= states.parameters_bytes < 2.1 * share
        assert 12 * share <= states.optimizer_bytes < 12.6 * share
    on_device, offloaded = (peak_instant(trial.ranks[0], StepKind.STEADY, Place.DEVICE) for trial in (ran[0], ran[-1]))
    assert on_device is not None
    assert offloaded is not None
    assert offloaded.total_bytes < on_device.total_bytes
