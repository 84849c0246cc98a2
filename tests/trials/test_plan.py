"""`zerobench plan` as a command: the real DeepSpeed engine on a GPU that is not there, simulated and emulated."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.known import known
from zerobench.common.vocabulary import Place, Status, StepKind
from zerobench.records.instants import model_states, peak_instant
from zerobench.records.store import load_run

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_plan_by_simulation_recommends_a_configuration_and_its_ledger_has_the_states(tmp_path: Path) -> None:
    words = ["--model", "gpt2-10m", "--gpus", "8", "--gpu", "a100", "--host-memory", "1TB", "--sequence-length", "256"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "zerobench",
            "plan",
            *words,
            "--stage",
            "3",
            "--write",
            "ds.json",
            "--evidence",
            "simulated",
        ],
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
        share = known(rank.parameters).total / 8
        states = known(model_states(rank))
        assert 2 * share <= states.parameters_bytes < 2.1 * share
        assert 12 * share <= states.optimizer_bytes < 12.6 * share
    on_device, offloaded = (
        known(peak_instant(trial.ranks[0], StepKind.STEADY, Place.DEVICE)) for trial in (ran[0], ran[-1])
    )
    assert offloaded.total_bytes < on_device.total_bytes


WIDE = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8192, "n_head": 64, "n_positions": 128, "vocab_size": 512}
"""1.6 billion parameters, whose states are larger than an A10 and their parts of eight are not."""


@pytest.mark.usefixtures("emulator")
def test_a_plan_on_an_emulated_gpu_says_of_what_does_not_fit_how_much_is_missing(tmp_path: Path) -> None:
    (tmp_path / "wide.json").write_text(json.dumps(WIDE))
    words = ["--model", "wide.json", "--gpus", "8", "--gpu", "a10", "--host-memory", "1TB", "--sequence-length", "128"]
    done = subprocess.run(
        [sys.executable, "-m", "zerobench", "plan", *words, "--stage", "0,1", "--details"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "140"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "3 configurations predicted on an emulated GPU" in done.stdout
    [run] = (tmp_path / "reports").iterdir()
    too_large, fits, offloaded = load_run(run).trials()
    assert [one.record.status for one in (too_large, fits, offloaded)] == [
        Status.OUT_OF_DEVICE_MEMORY,
        Status.COMPLETED,
        Status.COMPLETED,
    ]
    assert "no: device" in done.stdout
    [sentence] = re.findall(r"zero0: does not fit: needs ([\d.]+) GiB of ", done.stdout)
    failure, parameters = known(too_large.record.failure), known(too_large.ranks[0].parameters)
    assert failure.bytes_needed is not None
    assert failure.bytes_needed > 16 * parameters.total
    assert abs(float(sentence) - failure.bytes_needed / 2**30) < 0.01
