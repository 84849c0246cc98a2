"""Output of a watched command, passed on at once and stored in the run's folder, byte for byte."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 65536


class StreamCopy(threading.Thread):
    """Copies one stream of the command to `path` and to `show`, until all its writers have ended."""

    def __init__(self, path: Path, show: Callable[[bytes], None]) -> None:
        super().__init__(name=f"pass-{path.stem}", daemon=True)
        self._path = path
        self._show = show
        self.faults: list[str] = []
        """Reasons for missing parts of the stream."""
        self._from, self.to = os.pipe()
        """The command gets `to`; our copy is closed once it has it (`started`)."""

    def started(self) -> None:
        """Start copying: the command has its end of the pipe."""
        os.close(self.to)
        self.start()

    def run(self) -> None:
        """Copy. A taker that fails, a full disk or a closed screen, is dropped: the command must not wait."""
        takers = [self._keep, self._show]
        while chunk := os.read(self._from, _CHUNK_BYTES):
            for taker in tuple(takers):
                try:
                    taker(chunk)
                except (OSError, ValueError) as error:
                    takers.remove(taker)
                    self.faults.append(f"{self._path.name}: not passed on or not stored from here: {error}")
        os.close(self._from)

    def _keep(self, chunk: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(chunk)

    def finish(self, patience_s: float) -> bool:
        """Wait for the end of the stream; False if a process that outlived the command still holds it."""
        self.join(patience_s)
        return not self.is_alive()
