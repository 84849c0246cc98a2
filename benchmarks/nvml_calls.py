"""What this machine's NVIDIA driver says and what asking it costs: every call that zerobench makes, timed by itself.

    python benchmarks/nvml_calls.py [--calls 2000] [--out FILE]

For each device: name, memory API, total, used and reserved bytes, power, energy, and what it does not tell and why.
Then microseconds of each call: the median, the 99th percentile and the longest. A process list is asked for less often,
since it takes milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.prediction.simulated import origin, table
from zerobench.rank.nvml.nvml import DeviceReader, list_devices

_RARE = 20
"""One in so many of the calls asked for, of those that take milliseconds."""


def timed_us(call: Callable[[], object], calls: int) -> list[float]:
    """Microseconds of each of `calls` calls, after one that is thrown away."""
    call()
    times = []
    for _ in range(calls):
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1e3)
    return times


def measure(reader: DeviceReader, calls: int) -> dict[str, list[float]]:
    """Times of each kind of call on one device."""
    return {
        "memory": timed_us(lambda: reader.read(power=False), calls),
        "memory, power, energy": timed_us(reader.read, calls),
        "processes": timed_us(reader.processes, max(1, calls // _RARE)),
        "list of all devices": timed_us(list_devices, max(1, calls // _RARE)),
    }


def lines(report: dict[str, Any]) -> list[str]:
    """What was told and measured, in Markdown."""
    facts = [f"- {name}: {value}" for name, value in report.items() if name != "calls_us"]
    rows = [
        (name, len(times), *(f"{value:,.1f}" for value in _statistics(times)))
        for name, times in report["calls_us"].items()
    ]
    return [*facts, "", *table(("call", "calls", "median, us", "p99, us", "longest, us"), rows)]


def _statistics(times: list[float]) -> tuple[float, float, float]:
    ordered = sorted(times)
    return statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]


def main() -> int:
    """Ask all devices; 1 where there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--out", type=Path, help="raw values as JSON")
    asked = parser.parse_args()
    listing = list_devices()
    if not listing.devices:
        print(f"no device: {listing.reason}", file=sys.stderr)
        return 1
    reports = []
    for device in listing.devices:
        reader = DeviceReader.open(device.uuid)
        now = reader.read()
        reports.append(
            {
                "name": device.name,
                "driver": listing.driver_version,
                "CUDA": listing.cuda_version,
                "memory_api": reader.memory_api,
                "total_bytes": device.total_bytes,
                **now._asdict(),
                "not told": reader.absent,
                "calls_us": measure(reader, asked.calls),
            }
        )
    print("\n".join(["# NVML calls", "", *origin(), *(line for report in reports for line in lines(report))]))
    if asked.out is not None:
        asked.out.write_text(json.dumps(reports, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
