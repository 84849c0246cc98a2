"""The sampler process against the stand-in driver: what it catches, what it survives, what it leaves."""

import cmath
import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
import pytest

from tests.nvml_standin.standin import Standin, uuid
from tests.tools.known import known
from zerobench.records.folder import TrialFolder
from zerobench.records.nvml_samples import NvmlSample, read_samples
from zerobench.records.records import NvmlDevice, NvmlSummary

NODE = 0
GB = 1_000_000_000
START = """
import json, os, signal, sys, time
from pathlib import Path
from zerobench.records.folder import TrialFolder
from zerobench.rank.nvml.sampler import Sampler
sampler = Sampler.start(TrialFolder(Path(sys.argv[1])), 0, sys.argv[3:] or None)
assert sampler.wait_ready(20)
"""
STOP = """
time.sleep(float(sys.argv[2]))
print(sampler.stop().model_dump_json())
"""


@dataclass
class Outcome:
    """Files of a sampler."""

    summary: NvmlSummary
    samples: list[NvmlSample]

    def of(self, gpu_uuid: str) -> list[NvmlSample]:
        return [sample for sample in self.samples if sample.gpu_uuid == gpu_uuid]

    def device(self, gpu_uuid: str) -> NvmlDevice:
        return next(device for device in self.summary.devices if device.gpu_uuid == gpu_uuid)


def outcome(folder: Path) -> Outcome:
    """Read the files in a trial's folder."""
    trial = TrialFolder(folder)
    samples, summary = trial.nvml_samples(NODE), trial.nvml_summary(NODE)
    return Outcome(
        NvmlSummary.model_validate_json(summary.read_text()), list(read_samples(samples)) if samples.exists() else []
    )


def sample(
    standin: Standin, folder: Path, scenario: str, *uuids: str, seconds: float = 0.3, driver: str = "new"
) -> Outcome:
    """Sample a machine for a while from a process that stands for a rank."""
    said = standin.run(START + STOP, scenario, driver, str(folder), str(seconds), *uuids)
    left = outcome(folder)
    assert left.summary == NvmlSummary.model_validate(said)
    return left


@contextmanager
def rank(
    standin: Standin, folder: Path, scenario: str, control: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A process that stands for a rank, and its sampler; both ended afterwards."""
    wait = "print(sampler.pid, flush=True)\nsys.stdin.readline()\nprint(sampler.stop().model_dump_json())"
    command = [sys.executable, "-c", START + wait, str(folder)]
    environ = standin.environment(scenario, control=control)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True) as user:
        sampler = psutil.Process(int(known(user.stdout).readline()))
        try:
            yield user, sampler
        finally:
            user.kill()
            if sampler.is_running():
                sampler.kill()


def wait_until_ended(process: psutil.Process, timeout_s: float = 5.0) -> None:
    """Until the process is gone, or is a zombie that its parent has yet to look at."""
    deadline = time.monotonic() + timeout_s
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"{process} goes on"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def busy(standin: Standin, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, float]:
    """Eight GPUs whose driver takes 20 us a call, sampled for three seconds; GPU 3 has a 10 ms spike every 137 ms."""
    scenario = "gpus 8 power_mw=412000\nlatency_us 20\nmem 3 0:1000000000\npulse 3 137 10 5000000000"
    folder = tmp_path_factory.mktemp("busy")
    unix_minus_monotonic_s = time.time() - time.monotonic()
    environ = standin.environment(scenario)
    t0_ns = int(Path(environ["FAKE_NVML_SCENARIO"]).read_text().split()[-1])
    subprocess.run(
        [sys.executable, "-c", START + STOP, str(folder), "3"], env=environ, check=True, stdout=subprocess.DEVNULL
    )
    return outcome(folder), t0_ns / 1e9 + unix_minus_monotonic_s


def test_eight_gpus_are_swept_at_the_rate_asked_although_every_driver_call_takes_20_microseconds(
    busy: tuple[Outcome, float],
) -> None:
    left, _ = busy
    counts = Counter(sample.gpu_uuid for sample in left.samples)
    assert set(counts) == {uuid(i) for i in range(8)}
    # Three seconds hold 300 sweeps; a machine busy with other work misses some. A thread beside a busy loop makes 73.
    assert min(counts.values()) > 150
    assert left.summary.num_samples == len(left.samples) == sum(counts.values())
    steps = [after.t_s - before.t_s for before, after in pairwise(left.of(uuid(0)))]
    assert median(steps) == pytest.approx(left.summary.interval_s, abs=0.001)


def test_deadlines_do_not_drift(busy: tuple[Outcome, float]) -> None:
    left, _ = busy
    times = [sample.t_s for sample in left.of(uuid(0))][1:-1]
    # On the circle of one interval, times that keep their deadlines lie together; times that drift go round it.
    together = abs(sum(cmath.exp(2j * math.pi * (t_s - times[0]) / 0.010) for t_s in times)) / len(times)
    assert together > 0.3  # 0.03 when every deadline counts from the reading before it; late wake-ups cost some


def test_the_largest_gap_is_the_largest_between_two_samples_of_a_device(busy: tuple[Outcome, float]) -> None:
    left, _ = busy
    gaps = [b.t_s - a.t_s for i in range(8) for a, b in pairwise(left.of(uuid(i)))]
    assert left.summary.largest_gap_s == pytest.approx(max(gaps), abs=1e-5)


def test_spikes_of_10_ms_are_caught_at_the_unix_time_at_which_they_were(busy: tuple[Outcome, float]) -> None:
    left, t0_s = busy
    assert left.device(uuid(3)).baseline_used_bytes in (GB, 6 * GB)
    assert left.device(uuid(3)).peak_used_bytes == 6 * GB
    in_spike = [(sample.t_s - t0_s) % 0.137 < 0.010 for sample in left.of(uuid(3))]
    seen = [sample.used_bytes == 6 * GB for sample in left.of(uuid(3))]
    agreeing = sum(a == b for a, b in zip(in_spike, seen, strict=True))
    # At a spike's edges the clock's few microseconds decide; a busy machine may part the stamp from the reading.
    assert agreeing / len(seen) > 0.95
    assert sum(seen) > 10


def test_power_is_read_ten_times_a_second_and_its_energy_counted(busy: tuple[Outcome, float]) -> None:
    left, _ = busy
    for index in range(8):
        samples = left.of(uuid(index))
        powers = [sample.power_watts for sample in samples if sample.power_watts is not None]
        assert set(powers) == {412.0}
        assert 12 < len(powers) < 40
        device, seconds = left.device(uuid(index)), samples[-1].t_s - samples[0].t_s
        assert device.energy_joules == pytest.approx(412 * seconds, rel=0.02)
        assert device.mean_power_watts == pytest.approx(412, rel=0.02)


def test_without_an_energy_counter_the_power_is_integrated_and_the_record_says_so(
    standin: Standin, tmp_path: Path
) -> None:
    scenario = "gpus 1 power_mw=300000\nerr 0 nvmlDeviceGetTotalEnergyConsumption 3"
    left = sample(standin, tmp_path, scenario, seconds=0.5)
    seconds = left.samples[-1].t_s - left.samples[0].t_s
    assert left.device(uuid(0)).energy_joules == pytest.approx(300 * seconds, rel=0.01)
    assert left.summary.faults == [f"{uuid(0)}: no energy: Not Supported (nvmlDeviceGetTotalEnergyConsumption)"]


def fail(control: Path, gpu: int, code: int) -> None:
    """Let every call for GPU `gpu` fail with `code` from now on; 0 mends it (ctl_t in fakenvml.c)."""
    with control.open("r+b") as file:
        file.seek(8 * (4 + 2 * gpu + 1))
        file.write(code.to_bytes(8, "little"))


def test_a_gpu_lost_in_mid_run_is_named_with_the_time_and_the_others_go_on(standin: Standin, tmp_path: Path) -> None:
    control = tmp_path / "control"
    with rank(standin, tmp_path, "gpus 3\nmem 1 0:500", control) as (user, _):
        time.sleep(0.3)
        fail(control, 1, 15)
        lost_at_s = time.time()
        time.sleep(0.6)
        user.communicate("\n", timeout=20)
    left = outcome(tmp_path)
    assert left.summary.available
    assert len(left.summary.faults) == 1
    assert left.summary.faults[0].startswith(f"{uuid(1)}: GPU is lost (nvmlDeviceGetMemoryInfo) at 1")
    assert left.summary.reason == f"{uuid(1)}: GPU is lost (nvmlDeviceGetMemoryInfo)"
    assert float(left.summary.faults[0].split()[-1]) == pytest.approx(lost_at_s, abs=0.2)
    assert (left.device(uuid(1)).peak_used_bytes, left.device(uuid(1)).energy_joules is not None) == (500, True)
    assert left.of(uuid(2))[-1].t_s > left.of(uuid(1))[-1].t_s + 0.3


def test_a_device_that_fails_for_a_while_comes_back(standin: Standin, tmp_path: Path) -> None:
    control = tmp_path / "control"
    with rank(standin, tmp_path, "gpus 2", control) as (user, _):
        fail(control, 0, 999)
        time.sleep(0.2)
        fail(control, 0, 0)
        time.sleep(1.3)
        user.communicate("\n", timeout=20)
    left = outcome(tmp_path)
    assert [fault.split(" at ")[0] for fault in left.summary.faults] == [
        f"{uuid(0)}: Unknown Error (nvmlDeviceGetMemoryInfo)"
    ]
    assert known(left.summary.largest_gap_s) > 0.9
    assert left.of(uuid(0))[-1].t_s == pytest.approx(left.of(uuid(1))[-1].t_s, abs=0.1)


def test_other_processes_are_named_once_and_the_process_list_is_never_polled(standin: Standin, tmp_path: Path) -> None:
    control = tmp_path / "control"
    scenario = f"gpus 1\nproc 0 {os.getpid()} 0:700\nproc 0 4000001 0:900\nproc 0 4000002 0:na"
    subprocess.run(
        [sys.executable, "-c", START + STOP, str(tmp_path), "0.5"],
        env=standin.environment(scenario, control=control),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    left, calls = outcome(tmp_path), calls_by_function(control)
    name = Path("/proc/self/comm").read_text().strip()
    assert left.device(uuid(0)).other_processes == [f"{os.getpid()} {name} 700", "4000001 - 900", "4000002 - -"]
    assert left.device(uuid(0)).baseline_used_bytes == 1600
    # The binding asks twice: for the list's length, then for the list.
    assert calls["DeviceGetComputeRunningProcesses_v2"] == 2
    assert calls["DeviceGetMemoryInfo_v2"] > 30
    assert calls["DeviceGetPowerUsage"] < 12


def calls_by_function(control: Path) -> dict[str, int]:
    """Number of calls of each function of the stand-in (ctl_t in fakenvml.c)."""
    counters = control.read_bytes()[8 * (4 + 2 * 16) :]
    rows = (struct.unpack_from("QQ48s", counters, offset) for offset in range(0, len(counters), 64))
    return {name.rstrip(b"\0").decode(): calls for key, calls, name in rows if key}


def test_the_sampler_ends_when_its_parent_is_killed_and_leaves_a_whole_record(standin: Standin, tmp_path: Path) -> None:
    with rank(standin, tmp_path, "gpus 2\nmem 0 0:100") as (user, sampler):
        time.sleep(0.3)
        user.kill()
        killed_at_s = time.time()
        user.wait()
        wait_until_ended(sampler)
    left = outcome(tmp_path)
    assert left.summary.num_samples == len(left.samples)
    assert left.samples[-1].t_s == pytest.approx(killed_at_s, abs=0.3)
    assert left.device(uuid(0)).peak_used_bytes == 100


def test_a_killed_sampler_loses_at_most_a_second_and_the_record_says_so(standin: Standin, tmp_path: Path) -> None:
    with rank(standin, tmp_path, "gpus 2\nmem 0 0:100") as (user, sampler):
        time.sleep(1.3)
        sampler.kill()
        killed_at_s = time.time()
        said, _ = user.communicate("\n", timeout=20)
    left = outcome(tmp_path)
    assert left.summary == NvmlSummary.model_validate_json(said)
    # A machine that let the sampler wait shows it in the gap.
    assert killed_at_s - left.samples[-1].t_s < 1.0 + (left.summary.largest_gap_s or 0)
    assert 10 < left.summary.num_samples <= len(left.samples)
    assert "the sampler died: it was ended by signal 9" in left.summary.faults[0]


def test_ctrl_c_does_not_end_the_sampler_and_sigterm_does_with_a_last_reading(standin: Standin, tmp_path: Path) -> None:
    with rank(standin, tmp_path, "gpus 1\nmem 0 0:100 700:900") as (_, sampler):
        sampler.send_signal(signal.SIGINT)
        time.sleep(0.7)
        sampler.terminate()
        ended_at_s = time.time()
        wait_until_ended(sampler)
    left = outcome(tmp_path)
    assert left.device(uuid(0)).peak_used_bytes == 900
    assert left.samples[-1].t_s == pytest.approx(ended_at_s, abs=0.1)
    assert (left.summary.num_samples, left.summary.faults) == (len(left.samples), [])


def test_a_driver_that_hangs_holds_up_neither_the_start_nor_the_end(standin: Standin, tmp_path: Path) -> None:
    code = """
import json, sys
from pathlib import Path
from zerobench.records.folder import TrialFolder
from zerobench.rank.nvml import sampler as module
module.END_PATIENCE_S = 0.2
module.unavailable_reason = lambda: None  # it would hang here instead; the sampler's process is what is tested
sampler = module.Sampler.start(TrialFolder(Path(sys.argv[1])), 0, None)
print(json.dumps([sampler.wait_ready(1.0), sampler.stop().reason]))
"""
    ready, reason = standin.run(code, "latency_us 60000000", "new", str(tmp_path))
    assert ready is False
    # 15 where the machine is so busy that the sampler had not come to the driver yet.
    assert reason in {f"the sampler was ended by signal {n} before its first reading: no output" for n in (9, 15)}


@pytest.mark.parametrize("driver", ["new", "old"])
def test_pynvml_gpustat_and_nvitop_agree_with_the_tracker(standin: Standin, tmp_path: Path, driver: str) -> None:
    scenario = "gpus 8 power_mw=412000\n" + "\n".join(
        f"mem {i} 0:{(i + 1) * 3 * 2**30}\nproc {i} 400000{i} 0:{2**29}" for i in range(8)
    )
    left = sample(standin, tmp_path, scenario, seconds=0.5, driver=driver)
    ours = [(device.gpu_uuid, device.peak_used_bytes) for device in left.summary.devices]
    watts = [device.mean_power_watts for device in left.summary.devices]
    processes = [[int(word) for word in device.other_processes[0].split(" - ")] for device in left.summary.devices]
    raw, gpustat, nvitop = standin.run(OTHERS, scenario, driver)
    assert ours == [(row["uuid"], row["used"]) for row in raw]
    assert ours == [(row["uuid"], row["used"]) for row in nvitop]
    assert [(name, used // 2**20) for name, used in ours if used] == [
        (row["uuid"], row["memory.used"]) for row in gpustat
    ]
    # Ours are energy over time: a machine that let the sampler wait between its clock and the counter shifts both.
    assert watts == pytest.approx([row["watts"] for row in nvitop], rel=0.03)
    assert watts == pytest.approx([row["power.draw"] for row in gpustat], rel=0.03)
    assert processes == [row["processes"] for row in raw]


OTHERS = """
    import json, gpustat, pynvml
    from nvitop import Device
    pynvml.nvmlInit()
    query = gpustat.new_query().jsonify()["gpus"]
    def raw(index):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
        return {"uuid": pynvml.nvmlDeviceGetUUID(handle), "used": memory(handle).used,
                "processes": [processes[0].pid, processes[0].usedGpuMemory]}
    def memory(handle):
        try:
            return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except Exception:
            return pynvml.nvmlDeviceGetMemoryInfo(handle)
    nvitop = [{"uuid": d.uuid(), "used": d.memory_used(), "watts": d.power_usage() / 1000} for d in Device.all()]
    print(json.dumps([[raw(i) for i in range(8)], query, nvitop]))
"""
