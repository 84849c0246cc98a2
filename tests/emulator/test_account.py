"""The account of an emulated node: what one process holds, all others see, through CUDA as through NVML."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tools.emulated import Emulated
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.hardware.overheads import overhead_of
from zerobench.emulator.emulator import Emulator
from zerobench.emulator.gpu import EmulatedGpu

MIB, GIB = 1 << 20, 1 << 30
GPU = EmulatedGpu.build(known_gpu("A100 SXM 80GB"))
NCCL = overhead_of("A100 SXM 80GB", 2).collectives_bytes

HOLDER = """
import json, os, sys, torch, torch.distributed as dist
def make(size, device): return torch.empty(size, dtype=torch.uint8, device=device)
kept = [make(3 << 30, "cuda:0"), make(1 << 30, "cuda:1")]
kept[0] = kept[0][: 1 << 20].clone()
torch.cuda.empty_cache()
torch.cuda.set_device(1)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=2)
dist.all_reduce(torch.ones(4, device="cuda:1"))
uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
reserved = [torch.cuda.memory_reserved(i) for i in range(2)]
print(json.dumps({"pid": os.getpid(), "uuids": uuids, "reserved": reserved}), flush=True)
sys.stdin.readline()
os._exit(0)
"""

MONITOR = """
import json, pynvml as nvml
nvml.nvmlInit()
handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
memory = [nvml.nvmlDeviceGetMemoryInfo(h) for h in handles]
newer = [nvml.nvmlDeviceGetMemoryInfo(h, version=nvml.nvmlMemory_v2) for h in handles]
assert [(m.total, m.free, m.used) for m in memory] == [(m.total, m.free, m.used + m.reserved) for m in newer]
print(json.dumps({
    "names": [nvml.nvmlDeviceGetName(h) for h in handles],
    "uuids": [nvml.nvmlDeviceGetUUID(h) for h in handles],
    "driver": nvml.nvmlSystemGetDriverVersion(),
    "total": [m.total for m in memory],
    "used": [m.used for m in newer],
    "reserved": [m.reserved for m in newer],
    "free": [m.free for m in memory],
    "processes": [[(p.pid, p.usedGpuMemory) for p in nvml.nvmlDeviceGetComputeRunningProcesses(h)] for h in handles],
    "busy": [nvml.nvmlDeviceGetUtilizationRates(h).gpu for h in handles],
}))
"""


@dataclass(frozen=True)
class Node:
    """An emulated node of two GPUs, on both of which one process holds memory."""

    holder: subprocess.Popen[str]
    said: dict[str, Any]
    environ: dict[str, str]
    account: Path

    def monitor(self) -> dict[str, Any]:
        """What NVML says in a process that uses no GPU."""
        command = [sys.executable, "-c", MONITOR]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def node(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    account = tmp_path_factory.mktemp("node") / "account"
    environ = {**os.environ, **emulator.variables(GPU, 2, account)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER], env=environ, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        yield Node(holder, json.loads(holder.stdout.readline()), environ, account)
        holder.kill()


def test_nvml_reads_what_cuda_holds_context_and_communicators_included(node):
    seen, held = node.monitor(), node.said["reserved"]
    assert held == [2 * MIB, GIB + 2 * MIB]
    assert seen["used"] == [held[0] + GPU.context_bytes, held[1] + GPU.context_bytes + NCCL]
    assert seen["processes"] == [[[node.said["pid"], used]] for used in seen["used"]]
    assert seen["total"] == [GPU.nvml_bytes] * 2
    assert seen["reserved"] == [GPU.nvml_bytes - GPU.memory_bytes] * 2
    assert seen["reserved"][0] > 0
    assert seen["free"] == [GPU.memory_bytes - used for used in seen["used"]]


def test_nvml_and_cuda_name_a_device_alike_and_no_driver_of_silicon(node):
    seen = node.monitor()
    assert seen["names"] == [GPU.name] * 2
    assert seen["uuids"] == [f"GPU-{uuid}" for uuid in node.said["uuids"]]
    assert len(set(seen["uuids"])) == 2
    assert seen["driver"] == "emulated"
    assert seen["busy"] == [0, 0]


SECOND = """
import json, torch
free, total = torch.cuda.mem_get_info()
try:
    torch.empty(free >> 21 << 21, dtype=torch.uint8, device="cuda")
    fits = True
    torch.empty((free >> 21 << 21) + (2 << 20), dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    refused = True
print(json.dumps([torch.cuda.device_count(), total - free, fits, refused]))
"""


def test_another_process_has_only_what_is_left_and_sees_the_devices_that_it_is_shown(node, emulated: Emulated):
    before = node.monitor()["used"]
    count, used, fits, refused = emulated(
        SECOND, gpu="A100 SXM 80GB", num_gpus=2, account=node.account, CUDA_VISIBLE_DEVICES="1"
    )
    assert count == 1
    assert used == before[1] + GPU.context_bytes
    assert fits
    assert refused
    assert node.monitor()["used"] == before


def test_what_a_killed_process_held_is_free_again(node):
    node.holder.kill()
    node.holder.wait()
    seen = node.monitor()
    assert seen["used"] == [0, 0]
    assert seen["processes"] == [[], []]


COMMUNICATORS = """
import json, torch, torch.distributed as dist
def outside(): return torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
one = torch.ones(4, device="cuda")
held = [outside()]
for group in (None, dist.new_group([0]), dist.new_group([0])):
    dist.all_reduce(one, group=group)
    held.append(outside())
print(json.dumps([later - sooner for sooner, later in zip(held, held[1:])]))
"""


def test_the_first_communicator_loads_kernels_and_each_more_has_buffers_alone_as_on_an_h200(emulated: Emulated):
    assert emulated(COMMUNICATORS, gpu="H200") == [558 * MIB, 388 * MIB, 388 * MIB]
