"""The software and hardware of a run: versions, driver, GPUs and links, machine, limits, git commits, variables without
secrets.

Versions come from package metadata: nothing heavy is imported, and they are the ones the ranks will import.
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
    """Return the installed versions of PACKAGES and of NVIDIA's libraries; None for missing ones."""
    versions = {name: version_of(name) for name in PACKAGES}
    names = {
        str(distribution.metadata["Name"]).lower()
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"]
    }
    return versions | {name: version_of(name) for name in sorted(names) if name.startswith("nvidia-")}


def _own_commit() -> dict[str, Any] | None:
    """Return the commit of the checkout that zerobench runs from; None for an installed package.

    An installed package may be inside someone's checkout (a virtual environment there), so only a file that git tracks
    counts.
    """
    package = Path(zerobench.__file__).parent
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
