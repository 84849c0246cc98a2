"""A script holds the same memory with a tracker and without one: the instrument keeps nothing of it alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.imports import ROOT
from zerobench.config.hardware.hardware import known_gpu
from zerobench.emulator.emulator import Emulator
from zerobench.emulator.gpu import EmulatedGpu

SCRIPT = Path(__file__).with_name("scripts") / "drops_what_it_made.py"
STEPS = 5
PHASES = ["after forward", "in backward", "after backward", "after the step"]


@pytest.fixture(scope="module")
def untracked(emulator: Emulator) -> list[Any]:
    """What the script prints on an emulated GPU where nobody looks on."""
    environ = {**os.environ, **emulator.variables(EmulatedGpu.build(known_gpu("H200")))}
    environ["PYTHONPATH"] = os.pathsep.join([environ.get("PYTHONPATH", ""), str(ROOT)])
    command = [str(emulator.python), str(SCRIPT), "--untracked"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    told: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def tracked(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Any]:
    """What it prints under `zerobench emulate`, and what that says of its rank."""
    assert emulator
    folder = tmp_path_factory.mktemp("tracked")
    options = ["--gpus", "1", "--gpu", "h200", "--steps", str(STEPS + 1), "--json"]
    command = [sys.executable, "-m", "zerobench", "emulate", *options, "--", "python", str(SCRIPT)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    [printed] = folder.glob("reports/*/trials/*/stdout.txt")
    [rank] = json.loads(done.stdout)["ranks"]
    return json.loads(printed.read_text().splitlines()[-1]), rank


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("phase", PHASES)
def test_what_a_script_drops_is_gone_at_once_in_every_phase(untracked, tracked, step, phase):
    printed, _ = tracked
    assert printed[step][0][phase] == untracked[step][0][phase]
    assert not {"logits", "logits' storage", "probabilities", "their storage"} & set(printed[step][0][phase])


@pytest.mark.parametrize("step", range(STEPS))
def test_a_script_reads_the_peaks_of_an_untracked_loop_in_every_step(untracked, tracked, step):
    printed, _ = tracked
    assert printed[step][1] == untracked[step][1]


def test_a_model_that_the_script_deletes_is_gone(untracked, tracked):
    printed, rank = tracked
    assert printed[-1] == untracked[-1]
    assert printed[-1][0] == {"at the end": []}
    assert rank["steps"] == STEPS
    assert rank["categories"]["parameters"] > 0


def test_the_peak_with_categories_is_the_peak_of_the_whole_run(tracked):
    printed, rank = tracked
    assert (
        sum(rank["categories"].values())
        == rank["peak_bytes"]
        == max(peak for *_, peak in (line[1] for line in printed))
    )
    assert rank["peak_step"] in (1, 2)
