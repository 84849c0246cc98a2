"""Host memory that ran out, read from a log: who killed a process, by whose word, and what was last said of memory.

A process that the kernel kills leaves no word of its own. The kernel, Slurm and containers say why they did it; a
launcher knows the signal alone, which anybody may send.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# NOTE: what may repeat is bounded: a log has lines of any length, and a search must not take their square.
_PROOFS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), proof)
    for pattern, proof in (
        (
            r"(?:Memory cgroup out of memory|Out of memory): Killed process \d{1,10} \([^)]{0,64}\)",
            "the kernel's own line",
        ),
        (r"[Dd]etected \d{1,10} oom[-_]kill event", "Slurm's own line"),
        (r"killed by the cgroup out-of-memory handler", "Slurm's own line"),
        (r"\bOOMKilled\b", "the container's own line"),
        (r"oom-kill:constraint=", "the kernel's own line"),
        (r"\bexceeds the memory usage threshold", "Ray's own line"),
        (r"[1-9]\d{0,9} Workers \(tasks / actors\) killed due to memory pressure \(OOM\)", "Ray's own line"),
        (r"killed due to the node running low on memory", "Ray's own line"),
    )
)
_SIGNALS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        r"exits with return code = -9\b",
        r"exitcode\s{0,20}: -9\b",
        r"Signal 9 \(SIGKILL\) received by PID",
        r"died with <Signals\.SIGKILL",
        r"exit(?:ed with)? (?:code|status)[ :=]{1,20}137\b",
        r"DataLoader worker \(pid.{0,100}?\) is killed by signal: Killed",
        r"(?:^\s*+|: line \d{1,10}:\s{1,20}\d{1,10} )Killed\b",  # a shell's own word, alone or behind its place
    )
)
_RSS = re.compile(r"anon-rss:(\d+)kB")
_READING = re.compile(r"CPU Virtual Memory:\s+used = ([\d.]+) GB, percent = ([\d.]+)%")
_MOST_SHOWN = 300


@dataclass(frozen=True)
class KilledProcess:
    """A process of the training that was ended from outside."""

    line: str
    proof: str | None
    """Who says that memory was why; None where only the signal is known."""
    resident_bytes: int | None
    """What the kernel says that it held."""
    last_reading: str | None
    """The host memory that DeepSpeed last wrote of, and when."""


def killed_in(text: str) -> KilledProcess | None:
    """The first kill that a log tells of, by the strongest word that there is; None where it tells of none."""
    lines = text.splitlines()
    for pattern, proof in (*_PROOFS, *((pattern, None) for pattern in _SIGNALS)):
        at = next((at for at, line in enumerate(lines) if pattern.search(line)), None)
        if at is not None:
            rss = _RSS.search(lines[at])
            held = None if rss is None else int(rss[1]) * 1024
            return KilledProcess(lines[at].strip()[:_MOST_SHOWN], proof, held, _last_reading(lines))
    return None


def _last_reading(lines: list[str]) -> str | None:
    """DeepSpeed's see_memory_usage writes three lines: where it is, the device's memory, the host's."""
    at = next((at for at in reversed(range(len(lines))) if _READING.search(lines[at])), None)
    match = None if at is None else _READING.search(lines[at])
    if at is None or match is None:
        return None
    where = lines[at - 2].rpartition("] ")[2].strip() if at >= 2 and "see_memory_usage" in lines[at - 2] else ""
    return f"{match[1]} GB used, {match[2]}% of the machine's{f' ({where})' if where else ''}"
