"""A phase that is entered twice keeps what was largest, adds up what moved, and says where a failure was."""

import itertools
import time

import pytest
import torch

from zerobench.common.block_io import BlockIo
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.recorder import DeviceRows, Marks, NvmeAccount, TimedPhases
from zerobench.records.records import DeviceMemory, StepTime

CPU = Device(torch.device("cpu"), "cpu", None, "gloo")


def test_after_a_failure_the_marks_say_in_which_phase_it_was():
    marks = Marks()
    with marks.mark(Phase.FORWARD):
        pass
    with pytest.raises(ValueError, match="here"), marks.mark(Phase.BACKWARD):
        raise ValueError("here")
    assert marks.phase is Phase.BACKWARD
    assert [mark.phase for mark in marks.marks] == [Phase.FORWARD]


def test_the_times_of_phases_add_up_over_micro_batches_and_lie_within_the_step():
    marks, times = Marks(), list[StepTime]()
    timed = TimedPhases(CPU, marks)
    with timed.step(times):
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
            with timed.phase(phase):
                torch.ones(100, 100) @ torch.ones(100, 100)
    (time,) = times
    lengths = {p: sum(m.end_s - m.start_s for m in marks.marks if m.phase is p) for p in Phase}
    assert time.forward_s == pytest.approx(lengths[Phase.FORWARD], abs=1e-5)
    assert time.backward_s == pytest.approx(lengths[Phase.BACKWARD], abs=1e-5)
    assert time.optimizer_s == pytest.approx(lengths[Phase.STEP], abs=1e-5)
    assert sum((time.forward_s or 0, time.backward_s or 0, time.optimizer_s or 0)) <= time.step_s
    assert all(a.end_s <= b.start_s + 1e-6 for a, b in itertools.pairwise(marks.marks))


def device_row(*, allocated: int, peak: int, reserved_peak: int, occupied: int | None = None) -> DeviceMemory:
    return DeviceMemory(
        step=StepKind.STEADY,
        phase=Phase.FORWARD,
        allocated_bytes=allocated,
        peak_allocated_bytes=peak,
        reserved_bytes=allocated,
        peak_reserved_bytes=reserved_peak,
        alloc_retries=0,
        nvml_used_bytes=None,
        nvml_process_bytes=None,
        peak_occupied_bytes=occupied,
    )


def test_a_devices_row_keeps_its_larger_peaks_and_its_last_live_bytes():
    rows = DeviceRows(CPU, None)
    for first, second in ((30, 40), (40, 30)):
        rows.keep(device_row(allocated=5, peak=100, reserved_peak=first, occupied=first - 10))
        rows.keep(device_row(allocated=7, peak=80, reserved_peak=second, occupied=second - 10))
        (row,) = rows.rows.values()
        assert (row.allocated_bytes, row.peak_allocated_bytes) == (7, 100)
        assert (row.peak_reserved_bytes, row.peak_occupied_bytes) == (40, 30)
        rows.rows.clear()


def test_a_device_that_does_not_tell_what_is_occupied_has_no_peak_of_it():
    rows = DeviceRows(CPU, None)
    for _ in range(2):
        rows.keep(device_row(allocated=5, peak=100, reserved_peak=30))
    (row,) = rows.rows.values()
    assert row.peak_occupied_bytes is None


def test_bytes_swapped_add_up_over_a_phases_entries_and_files_are_as_they_were_last(tmp_path):
    counts = iter([BlockIo(10, 100), BlockIo(14, 150), BlockIo(20, 200), BlockIo(21, 230)])
    sizes = iter([{"optimizer": 5, "parameters": 1}, {"optimizer": 8, "parameters": 2}])
    account = NvmeAccount(str(tmp_path), 0, lambda: next(counts), lambda _folder, _rank: next(sizes))
    for _ in range(2):
        with account.phase(StepKind.STEADY, Phase.STEP):
            time.sleep(0.02)
    (traffic,) = account.traffic.values()
    assert traffic.seconds >= 0.04
    assert (traffic.read_bytes, traffic.written_bytes) == (4 + 1, 50 + 30)
    live = {category: row.live_bytes for (_, _, category), row in account.rows.items()}
    assert live == {Category.OPTIMIZER_STATES_ON_NVME: 8, Category.PARAMETERS: 2, Category.TOTAL: 10}
    account.forget(StepKind.FIRST)
    assert account.traffic
    account.forget(StepKind.STEADY)
    assert not account.traffic


def test_without_offload_to_nvme_nothing_is_swapped():
    account = NvmeAccount(None, 0, lambda: BlockIo(1, 1), lambda _folder, _rank: {})
    with account.phase(StepKind.STEADY, Phase.STEP):
        pass
    assert not account.traffic
    assert not account.rows
