"""The software and hardware of a run: versions, driver, GPUs and links, machine, limits, git commits, variables without
secrets.

Versions come from package metadata: nothing heavy is imported, and they are the ones the ranks will import.
"""

import os
import platform
import resource
import socket
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

import zerobench
from zerobench.common import control_groups
from zerobench.common.environments import environment, version_of
from zerobench.common.errors import UserError
from zerobench.common.processor import processor_name
from zerobench.common.training_python import training_python
from zerobench.config.hardware.toolchain import torch_build
from zerobench.emulator.emulator import ENVIRONMENT, usable_torch
from zerobench.emulator.places import is_made, places, torch_in
from zerobench.launch.machine.variables import kept_variables
from zerobench.rank.nvml.nvml import list_devices
from zerobench.rank.nvml.topology import gpu_topology


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


PACKAGES = (
    "torch",
    "deepspeed",
    "transformers",
    "accelerate",
    "peft",
    "triton",
    "flash-attn",
    "numpy",
    "nvidia-ml-py",
    "pydantic",
    "pandas",
    "pyarrow",
    "psutil",
)
"""Packages whose versions affect the figures or their interpretation; NVIDIA's own libraries are added."""

_GIT_PATIENCE_S = 10.0


def capture_environment() -> dict[str, Any]:
    """Capture the environment as plain values for environment.json; unavailable facts are None, with a reason next to
    them.
    """
    listing = list_devices()
    return {
        "captured_at_s": time.time(),
        "hostname": socket.gethostname(),
        "versions": {"zerobench": zerobench.__version__, "python": training_python().version} | packages(),
        "python": str(training_python().python),
        "torch_build": torch_build(),
        "emulator": {"torch": emulated_torch()},
        "driver": {
            "version": listing.driver_version,
            **{name: getattr(listing, name) for name in ("cuda_version", "reason", "faults")},
        },
        "gpus": [asdict(device) for device in listing.devices],
        "topology": gpu_topology(listing.devices),
        "machine": machine(),
        "git": {"zerobench": _own_commit(), "cwd": git_commit(Path.cwd())},
        "variables": kept_variables(os.environ),
    }


def emulated_torch() -> str | None:
    """Return the version of the CUDA build that emulated ranks run; None if no emulator is set up."""
    made = environment(ENVIRONMENT)
    try:
        torch = usable_torch(made.path)
    except UserError:
        return None
    where = places(made, torch)
    over = torch if torch.cuda else torch_in(where.overlay)
    return over.version if over is not None and is_made(where, torch) else None


def packages() -> dict[str, str | None]:
    """Return the versions of PACKAGES and of NVIDIA's libraries that ranks import; None for missing ones."""
    versions = {name: version_of(name) for name in PACKAGES}
    names = {
        str(distribution.metadata["Name"]).lower()
        for distribution in training_python().distributions()
        if distribution.metadata["Name"]
    }
    return versions | {name: version_of(name) for name in sorted(names) if name.startswith("nvidia-")}


def _own_commit() -> dict[str, Any] | None:
    """Return the commit of the checkout that zerobench runs from; None for an installed package."""
    package = Path(zerobench.__file__).parent
    # An installed package may be inside someone's checkout (a virtual environment there): only a file that git tracks
    # counts.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return git_commit(package)


def git_commit(folder: Path) -> dict[str, Any] | None:
    """Return `commit` and `dirty` (tracked files that differ from it) of the checkout around `folder`; None outside
    one.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Run git on `folder`, without locks or monitors; None if it fails or is not installed."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    # A caller's GIT_DIR, as hooks have it, would answer for another checkout.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
