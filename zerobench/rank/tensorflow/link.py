"""A line between the coordinator of a parameter server and its workers, for what TensorFlow's own does not carry.

A worker of ParameterServerStrategy serves what the coordinator sends it and knows neither when a step begins nor what
became of it. Over this line the processes of a trial keep in step, and the coordinator tells what the losses were. It
carries bytes alone, no pickled objects (multiprocessing.connection, send_bytes), on the loopback interface, to whoever
knows a key that the launcher drew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener

_LOOPBACK = "127.0.0.1"
_PAUSE_S = 0.05


class CoordinatorsEnd:
    """Lines to all workers."""

    def __init__(self, port: int, key: bytes, num_workers: int) -> None:
        """Wait until all of them have called. Raises OSError: the port is taken."""
        with Listener((_LOOPBACK, port), authkey=key, backlog=num_workers) as listener:
            self._workers: Sequence[Connection] = [listener.accept() for _ in range(num_workers)]

    def gather(self) -> None:
        """Wait until all workers are waiting. Raises EOFError, OSError: one is gone."""
        for worker in self._workers:
            worker.recv_bytes()

    def tell(self, message: bytes = b"") -> None:
        """Let the workers go on, with what they must know. Raises OSError: one is gone."""
        for worker in self._workers:
            worker.send_bytes(message)


class WorkersEnd:
    """The line of one worker."""

    def __init__(self, port: int, key: bytes) -> None:
        """Call until the coordinator answers, which may still be importing."""
        while True:
            try:
                self._coordinator = Client((_LOOPBACK, port), authkey=key)
            except ConnectionRefusedError:
                time.sleep(_PAUSE_S)
            else:
                return

    def wait(self) -> bytes:
        """Say that we are waiting, and wait for the coordinator's word. Raises EOFError, OSError: it is gone."""
        self._coordinator.send_bytes(b"")
        return self._coordinator.recv_bytes()
