"""A measured trial on an emulated GPU: the whole path that ranks on CUDA take, driver and sampler included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.emulator.emulator import Emulator
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.records import Category, Place, Status
from zerobench.report.nvml_view import waterfall
from zerobench.spec.gpu_names import known_gpu
from zerobench.store import Trial, load_run

H200 = EmulatedGpu.of(known_gpu("H200"))
SET = ("attention=eager", "steps.warmup=1", "steps.timed=2")
MIB = 1 << 20


@pytest.fixture(scope="module")
def measured(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """The quickstart's plain loop, on a node of one emulated GPU whose account all its processes share."""
    folder = tmp_path_factory.mktemp("measured")
    environ = {**os.environ, **emulator.variables(H200, 1, folder / "account")}
    environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], str(Path.cwd())])
    options = [word for pair in SET for word in ("--set", pair)]
    command = [sys.executable, "-m", "zerobench", "run", "quickstart", "--only", "strategy=single", *options]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (folder / "reports").glob("quickstart_*")
    [trial] = load_run(run).trials()
    assert trial.record.status is Status.COMPLETED, trial.record.reason
    return trial


def test_each_byte_of_a_peak_has_its_name_the_matrix_librarys_workspaces_too(measured: Trial) -> None:
    [rank] = measured.ranks
    rows = [row for row in rank.memory if row.place is Place.DEVICE]
    for total in (row for row in rows if row.category is Category.TOTAL):
        here = [row for row in rows if (row.step, row.phase) == (total.step, total.phase)]
        nameless = sum(row.at_peak_bytes or 0 for row in here if row.category is Category.UNATTRIBUTED)
        assert nameless <= (total.at_peak_bytes or 0) / 100
    assert max(row.at_peak_bytes or 0 for row in rows if row.category is Category.WORKSPACES) == 64 * MIB


def test_the_driver_is_read_from_an_untouched_device_on_and_explained_to_the_byte(measured: Trial) -> None:
    [rank] = measured.ranks
    assert rank.context is not None
    assert (rank.context.before_bytes, rank.context.context_bytes) == (0, H200.context_bytes)
    seen = waterfall(measured)
    assert seen is not None
    assert (seen.unexplained_bytes, seen.used_bytes > 500 * MIB + H200.context_bytes) == (0, True)


def test_the_sampler_sees_the_device_fill_from_nothing(measured: Trial) -> None:
    [node] = measured.record.nvml
    [device] = node.devices
    assert node.available
    assert (device.total_bytes, device.baseline_used_bytes) == (H200.memory_bytes, 0)
    held = max(row.nvml_used_bytes or 0 for row in measured.ranks[0].device_memory)
    assert 0.9 * held < (device.peak_used_bytes or 0) <= held


def test_its_record_says_that_no_value_was_computed(measured: Trial) -> None:
    [rank] = measured.ranks
    assert any("no values are computed" in note for note in rank.notes)
