"""The kernel's counters of processes killed for lack of memory: the evidence of `out_of_host_memory`.

A killed process leaves no message, and SIGKILL alone may come from anyone. So the counters are read before and after
each trial: the machine's (`oom_kill` in /proc/vmstat) and that of our control group (`memory.events` in version 2,
`memory.oom_control` in version 1; Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerobench.common import control_groups


@dataclass(frozen=True)
class OomCounters:
    """Kills so far by counter file; unreadable files are missing."""

    kills: dict[str, int]

    def since(self, before: OomCounters) -> str | None:
        """Describe the counters that rose since `before`; None if none did."""
        grown = {
            source: count - before.kills[source]
            for source, count in self.kills.items()
            if source in before.kills and count > before.kills[source]
        }
        return "; ".join(f"oom_kill in {source} rose by {count}" for source, count in grown.items()) or None


def read_oom_counters(root: Path = Path("/")) -> OomCounters:
    """Read the counters; `root` replaces / for recorded files."""
    kills = {}
    names = ("memory.events", "memory.oom_control")
    candidates = (folder / name for folder in control_groups.folders(root, "memory") for name in names)
    for path in [root / "proc/vmstat", *[path for path in candidates if path.is_file()][:1]]:
        count = _oom_kill(path)
        if count is not None:
            kills[f"/{path.relative_to(root)}"] = count
    return OomCounters(kills)


def _oom_kill(path: Path) -> int | None:
    try:
        words = (line.split() for line in path.read_text().splitlines())
        return next((int(pair[1]) for pair in words if pair[:1] == ["oom_kill"]), None)
    except (OSError, ValueError):
        return None
