"""What a run ran on: versions, driver, GPUs and their links, machine, limits, git commits, variables without secrets.

Versions come from the packages' metadata: nothing heavy is imported, and what is written is what the ranks will import.
"""

import importlib.metadata
import os
import platform
import socket
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zerobench
from zerobench.common.environments import environment, version_of
from zerobench.common.errors import UserError
from zerobench.config.hardware.toolchain import torch_build
from zerobench.emulator.emulator import ENVIRONMENT, usable_torch
from zerobench.emulator.places import is_made, places, torch_in
from zerobench.launch.machine.machine import machine
from zerobench.launch.machine.variables import kept_variables
from zerobench.rank.nvml.nvml import list_devices
from zerobench.rank.nvml.topology import gpu_topology

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
"""Packages whose versions bear on the figures or on their reading; NVIDIA's own libraries are added to them."""

_GIT_PATIENCE_S = 10.0


def capture_environment() -> dict[str, Any]:
    """All of it as plain values, ready for environment.json; what is not available is None, with a reason beside it."""
    listing = list_devices()
    return {
        "captured_at_s": time.time(),
        "hostname": socket.gethostname(),
        "versions": {"zerobench": zerobench.__version__, "python": platform.python_version()} | packages(),
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
    """Version of the CUDA build that emulated ranks run; None where no emulator is made."""
    made = environment(ENVIRONMENT)
    try:
        torch = usable_torch(made.path)
    except UserError:
        return None
    where = places(made, torch)
    over = torch if torch.cuda else torch_in(where.overlay)
    return over.version if over is not None and is_made(where, torch) else None


def packages() -> dict[str, str | None]:
    """Versions of PACKAGES and of NVIDIA's libraries as installed; None for what is not."""
    versions = {name: version_of(name) for name in PACKAGES}
    names = {
        str(distribution.metadata["Name"]).lower()
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"]
    }
    return versions | {name: version_of(name) for name in sorted(names) if name.startswith("nvidia-")}


def _own_commit() -> dict[str, Any] | None:
    """The commit of the checkout that zerobench runs from; None for an installed package.

    An installed package may lie inside somebody's checkout (a virtual environment there): only a file that git tracks
    counts.
    """
    package = Path(zerobench.__file__).parent
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return git_commit(package)


def git_commit(folder: Path) -> dict[str, Any] | None:
    """`commit` and `dirty` (tracked files that differ from it) of the checkout around `folder`; None outside of one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says of `folder`, None where it fails or is not there; it takes no lock and runs no monitor."""
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
