"""Copies to the emulated GPU and back: real as long as they are small, no memory where they are large."""

from typing import Any

import pytest

from tests.tools.emulated import Emulated

PROGRAM = """
import json, time, torch
said = {}
copied = torch.arange(4).cuda()
computed = copied.max() + 1
said["copied"] = copied.tolist()
said["between"] = copied.clone().cpu().tolist()
numbers = torch.arange(16384, dtype=torch.float32)
said["at_the_limit"] = numbers.cuda().cpu().equal(numbers)
said["beyond"] = torch.zeros(16385).copy_(torch.ones(16385).cuda())[0].item()
large = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
large.copy_(torch.empty(4 << 30, dtype=torch.uint8))
large.clone(); large.zero_()
from pathlib import Path
held = [line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
said["resident_kib"] = int(held[0][1])  # of this program alone: getrusage's goes on from whoever started it
time.sleep(0.05)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(emulated: Emulated) -> dict[str, Any]:
    return dict(emulated(PROGRAM))


def test_what_was_copied_to_the_device_stays_when_kernels_have_read_it(said):
    assert said["copied"] == [0, 1, 2, 3]


def test_a_small_copy_within_the_device_is_real(said):
    assert said["between"] == [0, 1, 2, 3]


def test_copies_up_to_64_kib_are_real_and_larger_ones_move_nothing(said):
    assert said["at_the_limit"]
    assert said["beyond"] == 0


def test_large_copies_cost_no_memory(said):
    assert said["resident_kib"] < 1 << 20
