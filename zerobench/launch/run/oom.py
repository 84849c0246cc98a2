"""The kernel's own count of processes it killed for want of memory: the evidence of `out_of_host_memory`.

A process that the kernel kills leaves no word of its own, and SIGKILL alone may come from anyone. So the counters are
read before and after each trial: the whole machine's (`oom_kill` in /proc/vmstat), and that of the control group we run
in (`memory.events` in version 2, `memory.oom_control` in version 1; Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerobench.common import control_groups


@dataclass(frozen=True)
class OomCounters:
    """Kills counted so far, by the file that counts them; a file that cannot be read is not in it."""

    kills: dict[str, int]

    def since(self, before: OomCounters) -> str | None:
        """What was counted since `before`, in words; None where no counter rose."""
        grown = {
            source: count - before.kills[source]
            for source, count in self.kills.items()
            if source in before.kills and count > before.kills[source]
        }
        return "; ".join(f"oom_kill in {source} rose by {count}" for source, count in grown.items()) or None


def read_oom_counters(root: Path = Path("/")) -> OomCounters:
    """The counters as they stand; `root` stands for / where recorded files are read."""
    kills = {}
    for path in [root / "proc/vmstat", *_group_files(root)]:
        count = _oom_kill(path)
        if count is not None:
            kills[f"/{path.relative_to(root)}"] = count
    return OomCounters(kills)


def _group_files(root: Path) -> list[Path]:
    """Where our control group keeps its counter: the innermost file that is there."""
    names = ("memory.events", "memory.oom_control")
    candidates = (folder / name for folder in control_groups.folders(root, "memory") for name in names)
    return [path for path in candidates if path.is_file()][:1]


def _oom_kill(path: Path) -> int | None:
    try:
        words = (line.split() for line in path.read_text().splitlines())
        return next((int(pair[1]) for pair in words if pair[:1] == ["oom_kill"]), None)
    except (OSError, ValueError):
        return None
