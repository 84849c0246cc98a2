"""What a watched command prints: passed on at once and kept in the run's folder, byte for byte."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 65536


class StreamCopy(threading.Thread):
    """Copies one stream of the command to `path` and to `show`, until all its writers are gone or `close`."""

    def __init__(self, path: Path, show: Callable[[bytes], None]) -> None:
        super().__init__(name=f"pass-{path.stem}", daemon=True)
        self._path = path
        self._show = show
        self.faults: list[str] = []
        """Why a part of the stream is missing, where one is."""
        self._from, self.to = os.pipe()
        """The command gets `to`; ours is closed once it has it (`started`)."""

    def started(self) -> None:
        """The command has its end of the pipe: begin to copy."""
        os.close(self.to)
        self.start()

    def run(self) -> None:
        """Copy. Who can take no more, a full disk or a screen that is gone, is left out: the command must not wait."""
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
        """Wait for the end of the stream; False where a process that outlived the command still holds it."""
        self.join(patience_s)
        return not self.is_alive()
