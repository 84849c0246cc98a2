"""The machine as the kernel's files tell it, on recorded trees."""

import os
from pathlib import Path

import psutil
import pytest

from zerobench.common import control_groups
from zerobench.launch.machine.machine import machine

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_is_told_as_the_kernel_knows_it() -> None:
    found = machine()
    assert found["memory_bytes"] == psutil.virtual_memory().total
    assert found["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert found["kernel"] == os.uname().release
    assert found["cpu"]["model"]


def test_a_job_in_nested_groups_of_version_2_has_the_smallest_limit(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
            "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
            "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_7/memory.max": f"{64 * GIB}\n",
            "sys/fs/cgroup/slurm/job_7/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/slurm/memory.max": f"{512 * GIB}\n",
        },
    )
    assert (control_groups.memory_limit_bytes(root), control_groups.cores(root)) == (64 * GIB, 2.5)


def test_a_container_of_version_1_has_its_limits_at_the_mount(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert (control_groups.memory_limit_bytes(root), control_groups.cores(root)) == (8 * GIB, 4.0)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"},
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_no_limit_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    root = tree(tmp_path, files)
    assert (control_groups.memory_limit_bytes(root), control_groups.cores(root)) == (None, None)


def test_numa_nodes_have_their_cores_and_memory_in_order(tmp_path: Path) -> None:
    node = "sys/devices/system/node/node"
    root = tree(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nmodel name\t: AMD EPYC 9654\nmodel name\t: AMD EPYC 9654\n",
            f"{node}0/cpulist": "0-15\n",
            f"{node}0/meminfo": "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 1 kB\n",
            f"{node}10/cpulist": "32-47\n",
            f"{node}2/cpulist": "16-31\n",
            f"{node}2/meminfo": "Node 2 MemTotal:       2048 kB\n",
            ".dockerenv": "",
        },
    )
    found = machine(root)
    assert found["numa_nodes"] == [
        {"node": 0, "cores": "0-15", "memory_bytes": 1024 * 1024},
        {"node": 2, "cores": "16-31", "memory_bytes": 2048 * 1024},
        {"node": 10, "cores": "32-47", "memory_bytes": None},
    ]
    assert found["cpu"]["model"] == "AMD EPYC 9654"
    assert found["limits"]["container"] == "docker"


def test_a_kernel_that_shows_nothing_gives_none(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert (found["numa_nodes"], found["cpu"]["sockets"], found["limits"]["container"]) == (None, None, None)
