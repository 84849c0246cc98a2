"""A script reads its own peaks, and a phase of the ledger has its own, whoever resets torch's counters."""

from typing import Any

import pytest
import torch

from zerobench.rank.ledger import device_peaks
from zerobench.rank.ledger.device_peaks import DevicePeaks

PEAK = "allocated_bytes.all.peak"
DEVICE = torch.device("cuda", 0)


class Counter:
    """One of the allocator's counters, and its peak."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def reach(self, most: int, then: int) -> None:
        """Hold `most`, and then less."""
        self.peak, self.now = max(self.peak, most), then

    def reset(self, device: Any = None) -> None:
        assert device in (None, DEVICE)
        self.peak = self.now

    def stats(self, device: Any = None) -> dict[str, int]:
        assert device in (None, 0, DEVICE)
        return {PEAK: self.peak, "allocated_bytes.all.current": self.now}


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Counters of the only device of a torch with CUDA initialised."""
    counter = Counter()
    for module in (torch.cuda, torch.cuda.memory):
        monkeypatch.setattr(module, "reset_peak_memory_stats", counter.reset)
        monkeypatch.setattr(module, "memory_stats", counter.stats)
    monkeypatch.setattr(torch.cuda.memory, "_get_device_index", lambda *_, **__: 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(device_peaks, "_looks", {})
    monkeypatch.setattr(device_peaks, "_SCRIPT", DevicePeaks())
    return counter


def test_a_script_reads_its_peak_from_before_a_phase_began(counter: Counter) -> None:
    phase = DevicePeaks()
    phase.watch()
    counter.reach(100, then=10)
    phase.begin(DEVICE)
    counter.reach(40, then=10)
    assert torch.cuda.memory_stats()[PEAK] == 100
    assert phase.stats(DEVICE)[PEAK] == 40


def test_a_phase_keeps_its_peak_from_before_a_script_reset_the_counters(counter: Counter) -> None:
    phase = DevicePeaks()
    phase.watch()
    counter.reach(100, then=10)
    torch.cuda.reset_peak_memory_stats()
    counter.reach(40, then=10)
    assert torch.cuda.memory_stats()[PEAK] == 40
    assert phase.stats(DEVICE)[PEAK] == 100


@pytest.mark.parametrize("peaks", [(100, 40, 20), (40, 100, 20), (20, 40, 100)])
def test_of_any_number_of_resets_a_phase_keeps_the_largest_peak(counter: Counter, peaks: tuple[int, ...]) -> None:
    phase = DevicePeaks()
    phase.watch()
    for peak in peaks:
        counter.reach(peak, then=10)
        torch.cuda.reset_peak_memory_stats()
    assert phase.stats(DEVICE) == {PEAK: 100, "allocated_bytes.all.current": 10}
    assert phase.largest("allocated_bytes.all") == 100
    assert torch.cuda.memory_stats()[PEAK] == 10
    counter.reach(120, then=5)
    assert phase.stats(DEVICE) == {PEAK: 120, "allocated_bytes.all.current": 5}


def test_a_phase_begins_anew_and_what_the_script_reads_goes_on(counter: Counter) -> None:
    phase = DevicePeaks()
    phase.watch()
    counter.reach(100, then=10)
    torch.cuda.reset_peak_memory_stats()
    for peak, read in ((40, 40), (30, 40), (50, 50)):
        phase.begin(DEVICE)
        counter.reach(peak, then=10)
        assert phase.stats(DEVICE)[PEAK] == peak
        assert torch.cuda.memory_stats()[PEAK] == read


def test_what_was_kept_of_one_device_is_forgotten_alone(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two devices the fuller one's peak is the largest, whichever it is."""
    sizes = {0: 70, 1: 90}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats", lambda device: {PEAK: sizes[device]})
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {PEAK: sizes[device]})
    peaks = DevicePeaks()
    assert peaks.largest("allocated_bytes.all") == 90
    sizes[0] = 95
    assert peaks.largest("allocated_bytes.all") == 95
    peaks.keep()
    sizes.update({0: 10, 1: 20})
    assert [peaks.stats(index)[PEAK] for index in sizes] == [95, 90]
    peaks.forget(0)
    assert [peaks.stats(index)[PEAK] for index in sizes] == [10, 90]
    peaks.forget(0)  # of which nothing is kept any more
    assert peaks.largest("reserved_bytes.all") == 0  # nobody counts it
