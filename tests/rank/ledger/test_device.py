"""The device of a rank: a GPU where there is one, and no CPU in place of one that was promised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tools.emulated import Emulated
from tests.tools.known import known
from zerobench.config.hardware.hardware import find_gpu
from zerobench.rank.ledger.device import Clock, Device, choose_device
from zerobench.records.folder import NEEDS_GPU_VARIABLE

MIB = 2**20


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)


def test_a_rank_without_a_gpu_computes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NEEDS_GPU_VARIABLE, raising=False)
    assert choose_device(0).backend == "gloo"


def test_a_rank_that_was_promised_a_gpu_fails_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NEEDS_GPU_VARIABLE, "1")
    with pytest.raises(RuntimeError, match="needs a GPU"):
        choose_device(0)


class Event:
    """A CUDA event's way to tell a duration."""

    def elapsed_time(self, _end: Event) -> float:
        return 250.0


def test_durations_are_seconds_on_the_host_and_out_of_a_gpus_milliseconds() -> None:
    host, gpu = (Clock(Device(torch.device(kind), kind, None, "gloo")) for kind in ("cpu", "cuda"))
    start, end = host.mark(), host.mark()
    assert 0 <= host.seconds(start, end) < 1
    assert host.seconds(1.5, 4.0) == 2.5
    assert gpu.seconds(Event(), Event()) == 0.25


CHOSEN = """
import json, os, pathlib, sys, pynvml as nvml, torch
from zerobench.rank.ledger.device import choose_device
from zerobench.rank.ledger.held import Holdings
from zerobench.common.vocabulary import Category
os.chdir(sys.argv[1])
nvml.nvmlInit()
def used(): return nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlMemory_v2).used
def held(mib): return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
def refused():
    try: held(2**20)
    except torch.OutOfMemoryError: return device.last_standing.model_dump(mode="json")
device = choose_device(0)
device.watch_refusals()
chosen = used()
torch.cuda.set_device(device.torch_device)
current = used()
weight, rest = held(16), held(8)
plain = refused()
del rest
rest = held(4)
named = Holdings()
named.add(16 << 20, Category.PARAMETERS, None)
device.held, device.snapshot = lambda: named, pathlib.Path("snapshot.pickle")
found = {"chosen": chosen, "current": current, "plain": plain, "named": refused(), **device.last_refusal}
found["capacity"] = device.capacity_bytes
print(json.dumps({"name": device.name, "files": os.listdir(), **found}))
"""


def test_choosing_a_gpu_makes_no_context_and_a_refusal_tells_what_stood_on_it(
    emulated: Emulated, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    said = emulated(CHOSEN, str(tmp_path / "here"), account=tmp_path / "account")
    assert (said["name"], said["chosen"]) == ("NVIDIA H200", 0)
    assert said["current"] > 400 * MIB
    assert said["capacity"] == known(known(find_gpu("H200 SXM")).usable_memory_bytes)
    assert said["bytes_asked"] == 2**20 * MIB
    stood = {"allocated_bytes": 24 * MIB, "reserved_bytes": 36 * MIB, "largest_free_bytes": 12 * MIB}
    assert said["plain"] == stood | {"by_category": {}, "by_module": {}, "by_site": {}, "by_holder": {}}
    assert {name: said["named"][name] for name in stood} == {
        "allocated_bytes": 20 * MIB,
        "reserved_bytes": 36 * MIB,
        "largest_free_bytes": 16 * MIB,
    }
    assert said["named"]["by_category"] == {"parameters": 16 * MIB, "unattributed": 4 * MIB}
    assert said["named"]["by_site"] == {"allocated before tracking": 16 * MIB}
    assert said["files"] == ["snapshot.pickle"]
