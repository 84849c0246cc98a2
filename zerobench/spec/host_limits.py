"""How much memory the kernel lets this process have: the machine's, or the control group's where that is less.

In a container or a batch job the machine's own figure is not the one that counts: past the group's limit the
kernel kills, however much is free elsewhere (cgroups(7); Documentation/admin-guide/cgroup-v2.rst, memory.max;
cgroup-v1/memory.rst, memory.limit_in_bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil


def host_memory_bytes() -> int:
    """Bytes of host memory that this process and its children may use together."""
    limit = cgroup_limit_bytes()
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


def cgroup_limit_bytes(root: Path = Path("/")) -> int | None:
    """The smallest limit on the way from this process's control groups up to their roots; None without any.

    `root` is where /proc and /sys lie.
    """
    limits = [limit for file in _limit_files(root) if (limit := _read_limit(file)) is not None]
    return min(limits, default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    """The files that may hold a limit, for version 2 and version 1, innermost group first.

    Inside a container the path in /proc may be the host's, and not be there; the groups above it are tried too.
    """
    mount = root / "sys/fs/cgroup"
    for controllers, path in _groups(root / "proc/self/cgroup"):
        v1 = "memory" in controllers
        if v1 or not controllers:
            top, name = (mount / "memory", "memory.limit_in_bytes") if v1 else (mount, "memory.max")
            parts = PurePosixPath(path).relative_to("/").parts
            for depth in range(len(parts), -1, -1):
                yield top.joinpath(*parts[:depth], name)


def _groups(file: Path) -> Iterator[tuple[list[str], str]]:
    """Controllers and path of each line of /proc/self/cgroup; version 2 has no controllers there."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if path.startswith("/") and ".." not in path:
            yield [name for name in controllers.split(",") if name], path


def _read_limit(file: Path) -> int | None:
    """A limit in bytes; None where there is no such file or it says `max`."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
