"""What a TensorFlow process holds, as far as anybody can say: its variables by name, the rest by what the kernel sees.

TensorFlow's CPU allocator keeps no account that Python could read, and a graph's gradients and activations have no
names outside of it. So the total is what the process has grown by since before the model was built (resident size, its
peak within a phase), variables are named out of it, the remainder is `unattributed`: gradients, activations, buffers
of collectives, and what TensorFlow itself takes for graphs and threads. The process before that is `rest_of_process`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger import host
from zerobench.records.records import MemoryRow, ProcessMemory


def variable_bytes(model: Any, optimizer: Any) -> dict[Category, int]:
    """Bytes of one copy of the variables, by what they are."""
    sizes = {Category.PARAMETERS: sum(map(_nbytes, model.trainable_variables))}
    kinds = {"momentum": Category.FIRST_MOMENT, "velocity": Category.SECOND_MOMENT}
    for variable in optimizer.variables:
        category = kinds.get(variable.name.rpartition("_")[2], Category.OTHER_OPTIMIZER_STATES)
        sizes[category] = sizes.get(category, 0) + _nbytes(variable)
    return sizes


def _nbytes(variable: Any) -> int:
    """Bytes of a Keras variable, whose data type is a name that NumPy knows."""
    return math.prod(map(int, variable.shape)) * int(np.dtype(variable.dtype).itemsize)


class Counter(Protocol):
    """Counts the bytes that a process has on its device, knowing nothing of variables."""

    note: str
    """What a reader of the figures must know."""

    def start(self) -> bool:
        """Begin a new peak; whether there will be one."""

    def now(self) -> int | None:
        """Bytes now; None where nobody tells."""

    def peak(self) -> int | None:
        """The most since `start`."""

    def host_before(self) -> int | None:
        """What of the process's resident memory is none of the device's; None where all of it is."""


class ProcessGrowth:
    """Of a CPU: what the process has grown by since this was made."""

    note = (
        "device memory is process growth since before the model was built; only variables are named: "
        "gradients and activations are inside TensorFlow's graph, in unattributed"
    )

    def __init__(self) -> None:
        self._before = host.resident_bytes()

    def start(self) -> bool:
        """Let the kernel forget its peak."""
        return host.reset_peak_resident()

    def now(self) -> int:
        """Resident bytes more than before."""
        return host.resident_bytes() - self._before

    def peak(self) -> int | None:
        """The kernel's."""
        peak = host.peak_resident_bytes()
        return None if peak is None else peak - self._before

    def host_before(self) -> int | None:
        """What was resident before."""
        return self._before


class TpuMemory:
    """Of the TPU's cores that this process has: what TensorFlow says of each, added
    (tensorflow/python/framework/config.py, get_memory_info).
    """

    note = (
        "device memory is TensorFlow's figure for the TPU cores; only variables are named: gradients and "
        "activations are inside XLA's program, in unattributed"
    )

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices

    def start(self) -> bool:
        """Let TensorFlow forget its peaks, where it keeps any: of a TPU over the network it may not."""
        try:
            for device in self._devices:
                tf.config.experimental.reset_memory_stats(device)
        except ValueError:
            return False
        return True

    def now(self) -> int | None:
        """On all cores."""
        try:
            return self._sum("current")
        except ValueError:
            return None

    def peak(self) -> int | None:
        """Of all cores, each at its own time."""
        return self._sum("peak")

    def host_before(self) -> int | None:
        """None: no part of the process is the device's."""
        return None

    def _sum(self, key: str) -> int:
        return sum(int(tf.config.experimental.get_memory_info(device)[key]) for device in self._devices)


class MemoryBook:
    """Rows of each phase that is bracketed by `phase`; opened before the model is built."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.named: Mapping[Category, int] = {}
        """Bytes of variables, once there are some."""
        self._rows: dict[tuple[StepKind, Phase], list[MemoryRow]] = {}
        self._process: dict[tuple[StepKind, Phase], ProcessMemory] = {}

    @property
    def rows(self) -> list[MemoryRow]:
        """The ledger's rows."""
        return [row for rows in self._rows.values() for row in rows]

    @property
    def process_rows(self) -> list[ProcessMemory]:
        """What the kernel said at the end of each phase."""
        return list(self._process.values())

    def peak_bytes(self, step: StepKind, phase: Phase) -> int | None:
        """The most that the process grew by within a phase."""
        rows = self._rows[step, phase]
        totals = (row for row in rows if (row.place, row.category) == (Place.DEVICE, Category.TOTAL))
        return next((row.at_peak_bytes for row in totals), None)

    @contextmanager
    def phase(self, step: StepKind, phase: Phase) -> Iterator[None]:
        """Account for a phase; one that is bracketed again is reported as it was the last time."""
        has_host_peak, has_peak = host.reset_peak_resident(), self.counter.start()
        yield
        live, at_peak = self.counter.now(), self.counter.peak() if has_peak else None
        host_peak = host.peak_resident_bytes() if has_host_peak else None
        self._process[step, phase] = host.process_memory(step, phase, host_peak, pinned_bytes=None)
        self._rows[step, phase] = list(self._account(step, phase, live, at_peak))

    def _account(self, step: StepKind, phase: Phase, live: int | None, at_peak: int | None) -> Iterator[MemoryRow]:
        before, process = self.counter.host_before(), self._process[step, phase]
        rest = (process.rss_bytes, process.peak_rss_bytes) if before is None else (before, before)
        figures: dict[tuple[Place, Category], tuple[int, int | None]] = {
            **({} if live is None else self._on_device(live, at_peak)),
            (Place.HOST, Category.REST_OF_PROCESS): rest,
            (Place.HOST, Category.UNATTRIBUTED): (0, 0),
            (Place.HOST, Category.TOTAL): rest,
        }
        for (place, category), (live_bytes, at_peak_bytes) in figures.items():
            yield MemoryRow(
                step=step,
                phase=phase,
                place=place,
                category=category,
                live_bytes=live_bytes,
                at_peak_bytes=at_peak_bytes,
                own_peak_bytes=at_peak_bytes,
            )

    def _on_device(self, live: int, at_peak: int | None) -> dict[tuple[Place, Category], tuple[int, int | None]]:
        """What has a name, the rest, and all of it: at the end of the phase and at its peak."""
        named = sum(self.named.values())
        return {
            **{(Place.DEVICE, category): (nbytes, nbytes) for category, nbytes in self.named.items()},
            (Place.DEVICE, Category.UNATTRIBUTED): (live - named, None if at_peak is None else at_peak - named),
            (Place.DEVICE, Category.TOTAL): (live, at_peak),
        }
