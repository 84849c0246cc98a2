"""The device of a rank: a GPU where there is one, and no CPU in place of one that was promised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tools.emulated import Emulated
from zerobench.folder import NEEDS_GPU_VARIABLE
from zerobench.memory.device import choose_device


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


CHOSEN = """
import json, pynvml as nvml, torch
from zerobench.memory.device import choose_device
nvml.nvmlInit()
def used(): return nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used
device = choose_device(0)
device.watch_refusals()
chosen = used()
torch.cuda.set_device(device.torch_device)
print(json.dumps({"name": device.name, "chosen": chosen, "current": used()}))
"""


def test_choosing_a_gpu_makes_no_context_so_that_its_memory_can_be_told_from_that_of_others(
    emulated: Emulated, tmp_path: Path
) -> None:
    said = emulated(CHOSEN, account=tmp_path / "account")
    assert (said["name"], said["chosen"]) == ("NVIDIA H200", 0)
    assert said["current"] > 400 << 20
