"""Limits and counters of this process's control groups.

In a container or a batch job the machine's own figures do not apply: past the group's limit the kernel kills, however
much is free elsewhere (cgroups(7); Documentation/admin-guide/cgroup-v2.rst; cgroup-v1/memory.rst).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_NO_LIMIT = 2**60
"""Version 1 control groups write "no limit" as a number near 2^63."""


def host_memory_bytes() -> int:
    """Bytes of host memory that this process and its children may use together."""
    limit = memory_limit_bytes()
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Smallest memory limit of our group and its ancestors; None without a limit. `root`: parent of /proc."""
    values = (
        _first_line(folder / name)
        for folder in folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    )
    return min((int(v) for v in values if v.isdecimal() and int(v) < _NO_LIMIT), default=None)


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Current memory of our innermost group with accounting, page cache included; None without."""
    values = (
        _first_line(folder / name)
        for folder in folders(root, "memory")
        for name in ("memory.current", "memory.usage_in_bytes")
    )
    return next((int(value) for value in values if value.isdecimal()), None)


def cores(root: Path = Path("/")) -> float | None:
    """Smallest processor quota of our group and its ancestors, in cores; None without a quota."""
    quotas = []
    for folder in folders(root, "cpu"):
        both = _first_line(folder / "cpu.max").split()
        quota = both or [_first_line(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal():
            quotas.append(int(quota[0]) / int(quota[1]))
    return min(quotas, default=None)


def folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of our group and its ancestors, innermost first, for versions 2, 2 with 1, and 1.

    Inside a container the path in /proc may be the host's and not exist; the mount itself is then ours, and is among
    the ancestors. The folders need not exist.
    """
    for line in lines(root / "proc/self/cgroup"):
        number, controllers, group = [*line.split(":", 2), "", ""][:3]
        if ".." in group:
            continue
        inside = PurePosixPath(group.lstrip("/"))
        mount = root / "sys/fs/cgroup"
        mounts = [mount, mount / "unified"] if number == "0" else [mount / controller]
        if number == "0" or controller in controllers.split(","):
            yield from (top / part for top in mounts for part in (inside, *inside.parents))


def _first_line(path: Path) -> str:
    return next(lines(path), "").strip()


def lines(path: Path) -> Iterator[str]:
    """Lines of a small file; none if it cannot be read."""
    try:
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
