"""The sampler's own process: reads every device at fixed deadlines until SIGTERM or the end of its parent.

It is a process, since a sampling thread would wait for the interpreter lock of a busy training loop at every driver
call, and slow the loop by taking it. The loop only reads; a second thread evaluates and writes the readings, many at a
time. Reason: after a wait the processor's caches are cold, so that code at every deadline costs several times its cost
in a busy loop, and a disk that is busy with offload must not open a gap in the samples. Signals are awaited, not
handled: the wait for the next deadline is also the wait for SIGTERM.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from zerobench.rank.nvml.device_track import DeviceTrack
from zerobench.rank.nvml.nvml import UNIX_MINUS_MONOTONIC_S, DeviceReader, driver_version, list_devices
from zerobench.rank.nvml.nvml_driver import NOT_AVAILABLE, SUCCESS
from zerobench.rank.nvml.nvml_visible import VARIABLE, choose_visible
from zerobench.records.folder import write_whole
from zerobench.records.nvml_samples import HEADER, Values
from zerobench.records.records import NvmlSummary

POWER_INTERVAL_S = 0.1
"""Drivers update their power figure about this often (Yang et al. 2023, arXiv:2312.02741)."""
WRITE_INTERVAL_S = 0.5
"""Seconds between writes of samples to disk: a SIGKILL loses at most this much."""
WRITES_PER_SUMMARY = 2
"""Writes of samples per update of the summary, whose fsync costs as much as writing a hundred samples."""
SWITCH_INTERVAL_S = 0.0005
"""Longest time for which the writing thread may block the sampling one."""
END_SIGNALS = frozenset({signal.SIGTERM, signal.SIGHUP})


Sample = tuple[DeviceTrack, Values]
"""A device and one reading of it."""


class Session:
    """The requested devices, and their figures so far."""

    def __init__(self, node: int, interval_s: float, uuids: Sequence[str] | None) -> None:
        self.node = node
        self.interval_s = interval_s
        self.tracks: list[DeviceTrack] = []
        self.faults: list[str] = []
        self.not_sampled: list[str] = []
        for uuid in self._visible_uuids() if uuids is None else uuids:
            reader = DeviceReader.open(uuid)
            if reader.device is None:
                self.faults.append(str(reader.fault))
            elif reader.device.uuid not in {track.device.uuid for track in self.tracks}:
                self.tracks.append(DeviceTrack(reader, reader.device, reader.processes(), self.faults))
        self._missing = list(self.faults)
        self._driver_version = driver_version()

    def _visible_uuids(self) -> list[str]:
        """Devices that the trial may use, from the environment, which is that of the rank that started us."""
        listing = list_devices()
        self.faults += listing.faults or ([listing.reason] if listing.reason else [])
        uuids, self.not_sampled = choose_visible(listing, os.environ)
        if self.not_sampled and not uuids:
            self.faults.append(f"{VARIABLE} leaves no device to the trial: {os.environ[VARIABLE]!r}")
        return uuids

    def baseline(self) -> list[Sample]:
        """Take the first readings, including power and energy; figures that a device lacks become faults."""
        samples = self.sweep([True] * len(self.tracks))
        for track in self.tracks:
            self.faults += [f"{track.device.uuid}: no {what}: {why}" for what, why in track.reader.absent.items()]
        return samples

    def sweep(self, power: Sequence[bool]) -> list[Sample]:
        """Read every device once; `power`: for each device, whether to read its power too."""
        taken: list[Sample] = []
        for track, with_power in zip(self.tracks, power, strict=True):
            call = None if with_power else track.reader.memory_call
            t_s = monotonic()
            # Fast path: nothing between clock and driver, and no object but the sample.
            if call is not None and call.ask() == SUCCESS and (used := call.answer.used) != NOT_AVAILABLE:
                taken.append((track, (t_s + UNIX_MINUS_MONOTONIC_S, used, call.answer.reserved, None, None)))
            elif (reading := track.sample(power=with_power)) is not None:
                taken.append((track, reading))
        return taken

    def summary(self) -> NvmlSummary:
        """Summary of everything so far."""
        lost = [f"{track.device.uuid}: {track.reader.fault}" for track in self.tracks if track.reader.lost]
        gaps = [track.largest_gap_s for track in self.tracks if track.largest_gap_s is not None]
        num_samples = sum(track.num_samples for track in self.tracks)
        return NvmlSummary(
            hostname=socket.gethostname(),
            node=self.node,
            available=num_samples > 0,
            reason="; ".join(self._missing + lost) or None,
            driver_version=self._driver_version,
            memory_api=next((track.reader.memory_api for track in self.tracks), None),
            interval_s=self.interval_s,
            largest_gap_s=max(gaps, default=None),
            num_samples=num_samples,
            devices=[track.record() for track in self.tracks],
            not_sampled=self.not_sampled,
            faults=list(self.faults),
        )


class Writer(threading.Thread):
    """Evaluates readings and writes them to disk with the summary, outside the sampling loop."""

    def __init__(self, session: Session, samples: Path, summary: Path) -> None:
        super().__init__(name="nvml-writer", daemon=True)
        self._session, self._samples, self._summary = session, samples, summary
        self._taken: deque[Sample] = deque()
        self._ending = threading.Event()

    def begin(self) -> None:
        """Begin the file of samples."""
        self._samples.write_text(HEADER, encoding="utf-8")

    def add(self, samples: list[Sample]) -> None:
        """Queue readings for the next write."""
        self._taken.extend(samples)

    def run(self) -> None:
        """Write every WRITE_INTERVAL_S until `close`."""
        for number in itertools.count(1):
            if self._ending.wait(WRITE_INTERVAL_S):
                break
            self.put(summary=number % WRITES_PER_SUMMARY == 0)

    def put(self, *, summary: bool = True) -> None:
        """Append the queued readings, then replace the summary, which so never counts more rows than the file has."""
        taken = [self._taken.popleft() for _ in range(len(self._taken))]
        rows = [row for track, values in taken if (row := track.note(values)) is not None]
        with self._samples.open("a", encoding="utf-8") as file:
            file.write("".join(rows))
        if summary:
            write_whole(self._summary, self._session.summary().model_dump_json(indent=1))

    def close(self) -> None:
        self._ending.set()
        self.join()
        self.put()


class Deadlines:
    """Evenly spaced times on the monotonic clock; missed ones are skipped, so that nothing drifts."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._origin_s = monotonic()
        self.number = 0

    def seconds_to_next(self) -> float:
        """Advance to the next future deadline; returns the seconds until then."""
        elapsed_s = monotonic() - self._origin_s
        self.number = max(self.number + 1, math.ceil(elapsed_s / self._interval_s))
        return max(0.0, self.number * self._interval_s - elapsed_s)


def sample_until_ended(session: Session, writer: Writer, parent_pid: int) -> None:
    """Sweep at every deadline until SIGTERM or the end of the parent, then once more."""
    deadlines = Deadlines(session.interval_s)
    every = max(1, round(POWER_INTERVAL_S / session.interval_s))
    devices = range(len(session.tracks))
    # Power is read from one device at a time, so that all sweeps take about equally long.
    turns = [[(number + index) % every == 0 for index in devices] for number in range(every)]
    while os.getppid() == parent_pid:
        if signal.sigtimedwait(END_SIGNALS, deadlines.seconds_to_next()) is not None:
            break
        writer.add(session.sweep(turns[deadlines.number % every]))
    writer.add(session.sweep([True for _ in devices]))


def run(arguments: argparse.Namespace) -> int:
    """Sample according to the command line; returns 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    session = Session(arguments.node, arguments.interval_ms / 1000, arguments.uuids)
    if not session.tracks:
        write_whole(arguments.summary, session.summary().model_dump_json(indent=1))
        return 0
    writer = Writer(session, arguments.out, arguments.summary)
    writer.begin()
    writer.add(session.baseline())
    writer.put()  # the appearance of the summary announces the baseline
    gc.collect()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.disable()  # the loop makes no cycles, and a collection would open a gap
    writer.start()
    try:
        sample_until_ended(session, writer, arguments.parent_pid)
    finally:
        writer.close()
    return 0
