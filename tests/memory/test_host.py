"""The kernel's and malloc's figures move with what the process takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from zerobench.memory import host
block = bytearray(80_000_000)
del block
assert host.reset_peak_resident()
before = host.peak_resident_bytes()
block = bytearray(50_000_000)
print(host.peak_resident_bytes() - before, host.resident_bytes(), host.proportional_bytes(), host.malloc_bytes())
"""


@pytest.fixture(scope="module")
def figures():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_the_peak_is_the_phases_own_after_a_reset(figures):
    assert 45_000_000 < figures[0] < 60_000_000


def test_proportional_size_is_at_most_the_resident_size(figures):
    assert 0 < figures[2] <= figures[1] * 1.01


def test_malloc_counts_what_it_handed_out(figures):
    assert figures[3] >= 50_000_000
