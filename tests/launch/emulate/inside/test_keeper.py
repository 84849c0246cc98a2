"""The account of a playing rank: its peaks and when they were, whoever resets counters, and the driver's word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from zerobench.launch.emulate.inside import keeper as module
from zerobench.launch.emulate.inside.keeper import Keeper
from zerobench.launch.emulate.part import Account, End, Part
from zerobench.rank.ledger import device_peaks
from zerobench.rank.ledger.device_peaks import DevicePeaks

GIVEN, RESERVED = "allocated_bytes.all.peak", "reserved_bytes.all.peak"


class Device:
    """One GPU, as torch and the driver tell of it."""

    def __init__(self) -> None:
        self.peak = self.reserved = self.managed = self.outside = 0
        self.retries = 0

    def reach(self, peak: int) -> None:
        self.peak = max(self.peak, peak)
        self.reserved = max(self.reserved, 2 * peak)

    def reset(self, _device: Any = None) -> None:
        self.peak = 0

    def stats(self, _device: Any = None) -> dict[str, int]:
        return {GIVEN: self.peak, RESERVED: self.reserved, "num_alloc_retries": self.retries}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The only device of a torch that has begun CUDA."""
    device = Device()
    for place in (torch.cuda, torch.cuda.memory):
        monkeypatch.setattr(place, "reset_peak_memory_stats", device.reset)
        monkeypatch.setattr(place, "memory_stats", device.stats)
    monkeypatch.setattr(torch.cuda.memory, "_get_device_index", lambda *_, **__: 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: device.reserved)
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: {"allocated_bytes.peak": 11})
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda _: None)
    monkeypatch.setattr(module, "managed_bytes", lambda: device.managed)
    monkeypatch.setattr(module, "unmanaged_bytes", lambda: device.reserved + device.outside)
    monkeypatch.setattr(module, "uncounted_workspaces", list)
    monkeypatch.setattr(device_peaks, "_looks", {})
    monkeypatch.setattr(device_peaks, "_SCRIPT", DevicePeaks())
    return device


def keeper(folder: Path) -> Keeper:
    part = Part(
        command=["t.py"], rank=0, world_size=1, ranks_per_node=1, gpu="H100 SXM", host_memory_bytes=None, steps=3,
        account=folder / "account.json", under_ledger=True, speaks=True,
    )  # fmt: skip
    made = Keeper(part, Account(rank=0, end=End.STOPPED))
    made.begin()
    return made


@pytest.mark.parametrize(("start", "steps", "after", "peak", "step"), [
    (50, (40, 30), 10, 50, 0),
    (50, (60, 70), 10, 70, 2),
    (50, (70, 60), 10, 70, 1),
    (50, (70, 70), 10, 70, 1),
    (50, (50, 50), 50, 50, 0),
    (50, (60, 70), 90, 90, None),
    (0, (60,), 60, 60, 1),
])  # fmt: skip
def test_the_peak_is_told_with_the_step_that_first_reached_it(
    device: Device, tmp_path: Path, start: int, steps: tuple[int, ...], after: int, peak: int, step: int | None
) -> None:
    """0 is start-up; None what comes after the last whole step. The script resets torch's peaks before each step."""
    kept = keeper(tmp_path)
    device.reach(start)
    kept.training_begins()
    for reached in steps:
        torch.cuda.reset_peak_memory_stats()
        device.reach(reached)
        kept.step_ended()
    torch.cuda.reset_peak_memory_stats()
    device.reach(after)
    kept.end()
    found = Account.model_validate_json((tmp_path / "account.json").read_bytes())
    assert (found.start_peak_bytes, found.peak_bytes, found.peak_step) == (start, peak, step)
    assert found.num_steps == len(steps)
    assert (found.reserved_bytes, found.touched_device) == (2 * peak, True)
    assert (found.total_bytes, found.pinned_bytes) == (80, 11)


def test_what_lies_outside_of_torch_and_managed_memory_is_the_most_of_any_look(device: Device, tmp_path: Path) -> None:
    """Communicators that were made in a step may be gone when the script ends."""
    kept = keeper(tmp_path)
    device.reach(10)
    for outside, managed in ((500, 3), (900, 8), (600, 5)):
        device.outside, device.managed = outside, managed
        kept.step_ended()
    device.outside = device.managed = 0
    device.retries = 4
    kept.end()
    account = kept.account
    assert (account.outside_bytes, account.managed_bytes, account.alloc_retries) == (900, 8, 4)


def test_of_a_script_that_never_began_cuda_only_its_steps_are_told(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    kept = keeper(tmp_path)
    kept.training_begins()
    kept.step_ended()
    kept.end()
    found = Account.model_validate_json((tmp_path / "account.json").read_bytes())
    assert (found.num_steps, found.peak_bytes, found.reserved_bytes, found.touched_device) == (1, None, None, False)
    assert (found.start_peak_bytes, found.outside_bytes) == (None, None)


def test_a_gpu_of_which_nothing_was_taken_was_not_touched(device: Device, tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    kept.end()
    assert (kept.account.touched_device, kept.account.reserved_bytes, kept.account.peak_bytes) == (False, 0, 0)


def test_a_workspace_that_nobody_can_count_is_told(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "uncounted_workspaces", lambda: ["convolutions", "recurrent layers"])
    kept = keeper(tmp_path)
    kept.end()
    [note] = kept.account.notes
    assert note == "cuDNN's workspace for convolutions and recurrent layers is not counted: a GPU needs more"
