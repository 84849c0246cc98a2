"""How long a trial has been quiet: the one measure of a hang, which a busy machine cannot be taken for."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from zerobench.common.units import counted
from zerobench.records.progress import Progress


class Quiet:
    """Counts from the last word of any rank that said something new; from its own beginning where none has."""

    def __init__(self) -> None:
        self._last: dict[int, Progress] = {}
        self._since = time.monotonic()

    def hear(self, words: Iterable[Progress]) -> None:
        """Take the ranks' latest words."""
        for word in words:
            if self._last.get(word.rank) != word:
                self._last[word.rank] = word
                self.end()

    def end(self) -> None:
        """Something went on, whoever said so."""
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since something went on."""
        return time.monotonic() - self._since


@dataclass(frozen=True)
class Load:
    """How busy the runner's machine is."""

    running: float
    """Processes that run or wait for a core, averaged over a minute (proc(5), loadavg)."""
    cores: int
    """That we may use."""

    def __str__(self) -> str:
        return f"the machine's load was {self.running:.1f} on {counted(self.cores, 'core')}"


def read_load() -> Load:
    """As it is now."""
    return Load(os.getloadavg()[0], len(os.sched_getaffinity(0)))


def no_progress(timeout_s: float, where: str, load: Load | None) -> str:
    """Why a trial was ended that had been quiet for `timeout_s`: where it was, how busy the machine, which option."""
    busy = "" if load is None else f"; {load}"
    return f"no progress for {timeout_s:g} s: {where}{busy}; --set timeout_s={2 * timeout_s:g} waits longer"
