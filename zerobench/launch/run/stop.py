"""Ctrl-C and SIGTERM as a flag that the runner polls, so that a trial is ended and recorded, never torn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Flag that asks the runner to stop, with the signal that set it."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def ask(self, number: int = signal.SIGINT) -> None:
        """Ask the runner to end the current trial and leave."""
        self.signal = signal.Signals(number)


@contextmanager
def stop_on_signals(*more: signal.Signals) -> Iterator[Stop]:
    """Set the yielded `Stop` on SIGINT, SIGTERM, SIGHUP and `more`; signals the caller ignores stay ignored.

    Outside the main thread, where Python cannot take signals, only `Stop.ask` sets it.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.ask(number)

    before = {number: signal.getsignal(number) for number in (*_SIGNALS, *more)}
    taken = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in taken:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number in taken:
            signal.signal(number, before[number] or signal.SIG_DFL)
