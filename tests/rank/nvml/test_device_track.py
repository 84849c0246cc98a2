"""The sampler keeps peak, largest gap and energy of a device, and each fault once. The readings are the test's."""

import time

import pytest

from zerobench.rank.nvml.device_track import RETRY_S, DeviceTrack, EnergyCount
from zerobench.rank.nvml.nvml import DeviceInfo, DeviceProcess, DeviceReader, Reading
from zerobench.rank.nvml.nvml_driver import NOT_AVAILABLE
from zerobench.records.nvml_samples import Values

GPU = DeviceInfo(index=0, uuid="GPU-0", name="H100", total_bytes=80_000, pci_bus_id=None)


class Scripted(DeviceReader):
    """A reader whose fault is what the test says."""

    reads = 0

    def read(self, *, power: bool = True) -> Reading:
        self.reads += 1
        return Reading(time.time(), None if self.fault else 5, None, None, None)


def track(*, others: list[DeviceProcess] | None = None) -> DeviceTrack:
    return DeviceTrack(Scripted(None, GPU, None), GPU, others or [], [])


def noted(*values: Values) -> DeviceTrack:
    found = track()
    for one in values:
        found.note(one)
    return found


def used(t_s: float, nbytes: int | None) -> Values:
    return (t_s, nbytes, 100, None, None)


def test_the_baseline_is_the_first_reading_and_the_peak_the_largest():
    found = noted(used(1.0, 50), used(1.1, 90), used(1.2, 60))
    record = found.record()
    assert (record.baseline_used_bytes, record.peak_used_bytes, record.reserved_bytes) == (50, 90, 100)
    assert found.num_samples == 3


def test_a_peak_may_be_the_baseline():
    assert noted(used(1.0, 90), used(1.1, 60)).record().peak_used_bytes == 90


def test_the_largest_gap_is_that_between_two_readings_of_the_memory():
    found = noted(used(1.0, 5), used(4.0, 5), used(4.5, None), (4.7, None, None, 300.0, None), used(5.0, 5))
    assert found.largest_gap_s == pytest.approx(3.0)
    assert noted(used(1.0, 5)).largest_gap_s is None


def test_a_reading_that_told_nothing_is_no_sample():
    found = track()
    assert found.note(used(1.0, None)) is None
    assert found.num_samples == 0
    assert found.record().peak_used_bytes is None


def test_power_alone_is_a_reading_that_counts_as_energy():
    found = track()
    rows = [found.note((t_s, None, None, 100.0, None)) for t_s in (1.0, 3.0)]
    assert rows == ["1.000000,GPU-0,,,100.0,\n", "3.000000,GPU-0,,,100.0,\n"]
    assert (found.record().energy_joules, found.num_samples) == (200, 2)


def test_reserved_bytes_that_the_driver_does_not_know_are_not_available():
    found = track()
    row = found.note((1.0, 5, NOT_AVAILABLE, None, None))
    assert row == "1.000000,GPU-0,5,,,\n"
    assert found.record().reserved_bytes is None


def energy(*readings: tuple[float, float | None, float | None]) -> EnergyCount:
    found = EnergyCount()
    for t_s, watts, joules in readings:
        found.add(Reading(t_s, None, None, watts, joules))
    return found


def test_energy_is_what_the_drivers_counter_grew_by():
    found = energy((10.0, 100.0, 5_000.0), (11.0, 900.0, 5_200.0), (12.0, 100.0, 5_300.0))
    assert found.joules == pytest.approx(300)
    assert found.mean_watts == pytest.approx(150)


def test_without_a_counter_energy_is_the_mean_power_of_each_two_readings_over_their_time():
    found = energy((10.0, 100.0, None), (12.0, 300.0, None), (13.0, 100.0, None))
    assert found.joules == pytest.approx(2 * 200 + 1 * 200)
    assert found.mean_watts == pytest.approx(200)


def test_one_reading_is_no_energy():
    for count in (energy(), energy((10.0, 100.0, 5_000.0))):
        assert count.joules is None
        assert count.mean_watts is None


def test_a_fault_is_noted_once_and_its_device_rests_before_it_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    now_s = time.time()
    monkeypatch.setattr("zerobench.rank.nvml.device_track.unix_time_s", lambda: now_s)
    found = track()
    reader = found.reader
    assert isinstance(reader, Scripted)
    reader.fault = "it does not answer"
    assert found.sample(power=False) is not None
    assert found.sample(power=False) is None  # it rests
    assert reader.reads == 1
    now_s += RETRY_S + 1
    assert found.sample(power=False) is not None
    assert [fault.partition(" at ")[0] for fault in found.faults] == ["GPU-0: it does not answer"]
    now_s += RETRY_S + 1
    reader.fault = None
    assert found.sample(power=False) is not None
    assert found.sample(power=False) is not None  # it is well again, and rests no more
    now_s += RETRY_S + 1
    reader.fault = "it does not answer"
    found.sample(power=False)
    assert len(found.faults) == 2


def test_a_lost_device_is_asked_no_more():
    found = track()
    found.reader.fault, found.reader.lost = "it fell off the bus", True
    found.sample(power=False)
    found._retry_at_s = 1.0  # long ago
    assert found.sample(power=False) is None


def test_other_processes_are_told_with_a_dash_for_what_is_not_known():
    others = [DeviceProcess(7, "python", 300), DeviceProcess(8, None, None)]
    assert track(others=others).record().other_processes == ["7 python 300", "8 - -"]
