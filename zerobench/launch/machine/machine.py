"""The machine under a run: processor, memory, NUMA nodes, kernel, and the limits of containers and processes."""

import os
import platform
import resource
from pathlib import Path
from typing import Any

import psutil

from zerobench.common import control_groups
from zerobench.common.processor import processor_name


def machine(root: Path = Path("/")) -> dict[str, Any]:
    """Describe the machine in plain values; None for unavailable ones. `root` replaces / for recorded trees."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    packages = {next(control_groups.lines(path), "") for path in files}
    return {
        "cpu": {
            "model": processor_name(root),
            "sockets": len(packages) or None,
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "swap_bytes": psutil.swap_memory().total,
        "numa_nodes": _numa_nodes(root),
        "kernel": platform.release(),
        "os": _os_name(),
        "architecture": platform.machine(),
        "limits": limits(root),
    }


def _numa_nodes(root: Path) -> list[dict[str, Any]] | None:
    """List each NUMA node's cores and memory in bytes; None if the kernel shows no nodes."""
    folders = sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    return [
        {
            "node": int(path.name[4:]),
            "cores": next(control_groups.lines(path / "cpulist"), ""),
            "memory_bytes": _node_memory(path),
        }
        for path in folders
    ] or None


def _node_memory(folder: Path) -> int | None:
    """Read bytes from a line such as `Node 0 MemTotal:  65780200 kB`."""
    words = (line.split() for line in control_groups.lines(folder / "meminfo"))
    return next((int(word[3]) * 1024 for word in words if word[2:3] == ["MemTotal:"]), None)


def _os_name() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def limits(root: Path) -> dict[str, Any]:
    """Limits on this process: container, control group, locked memory, open files, shared memory."""
    shared_memory = root / "dev/shm"
    shared = os.statvfs(shared_memory) if shared_memory.is_dir() else None
    # The kind of container that we run in, by the file that each leaves; None for none that we know.
    marks = {".dockerenv": "docker", "run/.containerenv": "podman", ".singularity.d": "singularity"}
    return {
        "container": next((kind for mark, kind in marks.items() if (root / mark).exists()), None),
        "cgroup_memory_bytes": control_groups.memory_limit_bytes(root),
        "cgroup_cores": control_groups.cores(root),
        "locked_memory_bytes": _resource_limit(resource.RLIMIT_MEMLOCK),
        "open_files": _resource_limit(resource.RLIMIT_NOFILE),
        "shared_memory_bytes": shared.f_frsize * shared.f_blocks if shared else None,
    }


def _resource_limit(which: int) -> int | None:
    """Return the soft limit; None if unlimited."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
