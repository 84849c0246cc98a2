"""A measured trial on an emulated GPU: the whole path that ranks on CUDA take, driver and sampler included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.at_least_one import at_least_one
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.trial.trial import Evidence
from zerobench.emulator.emulator import Emulator
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.records.records import RankRecord
from zerobench.records.store import Trial, load_run
from zerobench.report.figures.nvml_view import waterfall
from zerobench.report.figures.predictions.figures import Key, Quantity, figures

H200 = EmulatedGpu.build(known_gpu("H200"))
SET = ("attention=eager", "steps.warmup=1", "steps.timed=2")
MIB = 1 << 20
MOMENTS = (Category.FIRST_MOMENT, Category.SECOND_MOMENT)
"""Which DeepSpeed does not page-lock."""


@pytest.fixture(scope="module")
def measured(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """The quickstart's plain loop, on a node of one emulated GPU whose account all its processes share."""
    [trial] = ran(emulator, tmp_path_factory.mktemp("measured"), "single")
    return trial


@pytest.fixture(scope="module")
def offloading(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> dict[Evidence, RankRecord]:
    """Stage 2 with its optimizer on the host, page-locked: measured and simulated."""
    axes = ("offload_optimizer=cpu", "optimizer=adamw", "evidence=measured,simulated", "gpu=H200")
    trials = ran(emulator, tmp_path_factory.mktemp("offloading"), "zero2", *axes)
    return {trial.spec.evidence: trial.ranks[0] for trial in trials}


def ran(emulator: Emulator, folder: Path, strategy: str, *axes: str) -> list[Trial]:
    environ = {**os.environ, **emulator.variables(H200, 1, folder / "account")}
    environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], str(Path.cwd())])
    options = [word for pair in (*SET, *axes) for word in ("--set", pair)]
    command = [sys.executable, "-m", "zerobench", "run", "quickstart", "--only", f"strategy={strategy}", *options]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (folder / "reports").glob("quickstart_*")
    trials = list(load_run(run).trials())
    assert {(trial.record.status, trial.record.reason) for trial in trials} == {(Status.COMPLETED, None)}
    return trials


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
    assert (device.total_bytes, device.baseline_used_bytes) == (H200.nvml_bytes, 0)
    held = max(row.nvml_used_bytes or 0 for row in measured.ranks[0].device_memory)
    assert 0.9 * held < (device.peak_used_bytes or 0) <= held


def test_its_record_says_that_no_value_was_computed(measured: Trial) -> None:
    [rank] = measured.ranks
    assert any("no values are computed" in note for note in rank.notes)


def test_the_host_holds_what_torchs_allocator_of_page_locked_memory_says(
    offloading: dict[Evidence, RankRecord],
) -> None:
    rank = offloading[Evidence.MEASURED]
    known = figures(rank)
    for process in at_least_one(rank.process_memory):
        total = Key(process.step, process.phase, Place.HOST, Category.TOTAL, Quantity.LIVE)
        moments = sum(
            known.get(total._replace(category=one), 0) for one in (Category.FIRST_MOMENT, Category.SECOND_MOMENT)
        )
        of_allocator = process.pinned_bytes
        assert of_allocator is not None
        if process.phase is Phase.INIT:
            assert known[total] == of_allocator
        assert known[total] - moments == pytest.approx(of_allocator, abs=2**14)  # flags, a batch
        with_process = total_of(rank, process.step, process.phase)
        assert with_process == process.rss_bytes  # rounding is in it once


def total_of(rank: RankRecord, step: StepKind, phase: Phase) -> int:
    wanted = (step, phase, Place.HOST, Category.TOTAL)
    [row] = [row for row in rank.memory if (row.step, row.phase, row.place, row.category) == wanted]
    return row.live_bytes


def test_measured_and_simulated_hosts_are_held_to_one_ruler(offloading: dict[Evidence, RankRecord]) -> None:
    measured, simulated = (figures(offloading[one]) for one in (Evidence.MEASURED, Evidence.SIMULATED))
    of_host = [key for key in simulated if key.place is Place.HOST and key.phase is not Phase.INIT]
    assert {key.category for key in of_host} >= {Category.ALLOCATOR_ROUNDING, Category.TOTAL}
    for key in of_host:
        if key.category is Category.ALLOCATOR_ROUNDING:
            assert measured[key] == simulated[key] > 2**20
        if key.category is Category.TOTAL:
            assert measured[key] == pytest.approx(simulated[key], abs=2**14)
