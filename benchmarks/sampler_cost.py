"""What the NVML sampler takes of a core, by itself: CPU time per sample and per sweep of all devices.

    python benchmarks/sampler_cost.py [--devices 2,8] [--latency-us 20] [--seconds 30] [--repeats 1]

The sampler runs against the stand-in driver of the tests, which spins through its latency: that time is the driver's,
is counted, and is shown beside as what no sampler can save. Interpreter start and baseline come before the clock.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import standin_driver
from tests.nvml_standin.standin import Standin

CODE = """
import json, sys, time
from pathlib import Path
from benchmarks.processes import cpu_seconds
from zerobench.records.folder import TrialFolder
from zerobench.rank.nvml.nvml import list_devices
from zerobench.rank.nvml.sampler import Sampler
folder, seconds = TrialFolder(Path(sys.argv[1])), float(sys.argv[2])
uuids = [device.uuid for device in list_devices().devices]
sampler = Sampler.start(folder, 0, uuids)
assert sampler.wait_ready(30)
time.sleep(1)
before_s, from_s = cpu_seconds(sampler.pid), time.monotonic()
time.sleep(seconds)
cpu_s, wall_s = cpu_seconds(sampler.pid) - before_s, time.monotonic() - from_s
told = sampler.stop()
print(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s, "summary": told.model_dump(mode="json")}))
"""
ENERGY_AND_POWER = 2 * 0.1
"""Calls a sample, beyond that for memory: both are read at every tenth."""


def measure(standin: Standin, folder: Path, devices: int, latency_us: int, seconds: float) -> dict[str, Any]:
    """One sampler, watched from its parent."""
    command = [sys.executable, "-c", CODE, str(folder), str(seconds)]
    environment = standin.environment(standin_driver.scenario(devices, latency_us))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def line(measured: dict[str, Any], latency_us: int) -> str:
    """CPU time a sample, a sweep, and of a core; the last also for the driver alone."""
    summary = measured["summary"]
    devices = len(summary["devices"])
    sweeps = measured["wall_s"] / summary["interval_s"]
    sweep_us = measured["cpu_s"] / sweeps * 1e6
    driver = devices * latency_us * (1 + ENERGY_AND_POWER) / summary["interval_s"] / 1e6
    return (
        f"{devices} devices: {sweep_us / devices:6.1f} us a sample, {sweep_us:6.1f} us a sweep, "
        f"{measured['cpu_s'] / measured['wall_s']:.2%} of a core ({driver:.2%} within the driver); "
        f"{summary['num_samples']} samples, largest gap {summary['largest_gap_s'] * 1000:.0f} ms"
    )


def main() -> None:
    """Print a line for each number of devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="2,8", help="how many, separated by commas")
    parser.add_argument(
        "--latency-us", type=int, default=standin_driver.LATENCY_US, help="what the stand-in driver takes for a call"
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--repeats", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zerobench-sampler-") as folder:
        standin = Standin.build(Path(folder) / "standin")
        for repeat in range(asked.repeats):
            for devices in map(int, asked.devices.split(",")):
                trial = Path(folder) / f"{devices}-{repeat}"
                trial.mkdir()
                print(line(measure(standin, trial, devices, asked.latency_us, asked.seconds), asked.latency_us))


if __name__ == "__main__":
    main()
