"""Time without progress: the only measure of a hang, which a busy machine does not trigger."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from zerobench.common.units import counted
from zerobench.records.progress import Progress


class Quiet:
    """Seconds since any rank reported something new, or since its creation."""

    def __init__(self) -> None:
        self._last: dict[int, Progress] = {}
        self._since = time.monotonic()

    def hear(self, words: Iterable[Progress]) -> None:
        """Take the ranks' latest progress."""
        for word in words:
            if self._last.get(word.rank) != word:
                self._last[word.rank] = word
                self.end()

    def end(self) -> None:
        """Restart the count: something progressed."""
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self._since


@dataclass(frozen=True)
class Load:
    """Load of the runner's machine."""

    running: float
    """Processes that run or wait for a core, averaged over a minute (proc(5), loadavg)."""
    cores: int
    """Usable cores."""

    def __str__(self) -> str:
        return f"the machine's load was {self.running:.1f} on {counted(self.cores, 'core')}"


def read_load() -> Load:
    """Read the present load."""
    return Load(os.getloadavg()[0], len(os.sched_getaffinity(0)))


def no_progress(timeout_s: float, where: str, load: Load | None) -> str:
    """Word the end of a trial without progress for `timeout_s`: its place, the machine's load, the option to change."""
    busy = "" if load is None else f"; {load}"
    return f"no progress for {timeout_s:g} s: {where}{busy}; --set timeout_s={2 * timeout_s:g} waits longer"
