"""sampler_cost.py measures a sampler that samples; what figures come out is not tested."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import cpu_seconds
from benchmarks.sampler_cost import line

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_line_for_each_number_of_devices_tells_what_the_sampler_took() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "sampler_cost.py"), "--devices", "1,3", "--seconds", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    one, three = done.stdout.splitlines()
    assert (one.split(":")[0], three.split(":")[0]) == ("1 devices", "3 devices")
    for told in (one, three):
        a_sample_us, a_sweep_us = (float(found) for found in re.findall(r"([\d.]+) us", told))
        assert 20 < a_sample_us <= a_sweep_us


def test_time_is_shared_out_over_sweeps_and_devices() -> None:
    summary = {"devices": [{}, {}], "interval_s": 0.01, "num_samples": 6200, "largest_gap_s": 0.012}
    assert line({"cpu_s": 0.6, "wall_s": 30.0, "summary": summary}, latency_us=20) == (
        "2 devices:  100.0 us a sample,  200.0 us a sweep, 2.00% of a core (0.48% within the driver); "
        "6200 samples, largest gap 12 ms"
    )


def test_the_clock_of_another_process_counts_its_work_and_not_its_sleep() -> None:
    code = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time(), flush=True)\ninput()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        own = float(process.stdout.readline())
        assert cpu_seconds(process.pid) == pytest.approx(own, abs=0.02)
        process.communicate("\n")
