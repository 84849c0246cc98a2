"""The largest process below this one, watched from a thread; the mark is the kernel's, so sampling may be slow."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

EVERY_S = 0.05


class PeakMemory:
    """Within it, the largest resident size that any descendant has reached (VmHWM of /proc/<pid>/status).

    A process of which nothing was seen in its last 50 ms may have grown unnoticed in them.
    """

    def __init__(self) -> None:
        self._peak_bytes = 0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def take_bytes(self) -> int:
        """The largest since the last time it was asked; 0 where nothing was seen."""
        self._look()
        with self._lock:
            taken, self._peak_bytes = self._peak_bytes, 0
        return taken

    def _watch(self) -> None:
        while not self._done.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        sizes = [high_water_bytes(child.pid) for child in psutil.Process().children(recursive=True)]
        with self._lock:
            self._peak_bytes = max(self._peak_bytes, *(size for size in sizes if size is not None), 0)


def high_water_bytes(pid: int) -> int | None:
    """The largest resident size that a process has had; None where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
