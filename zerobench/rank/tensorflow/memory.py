"""Memory of a TensorFlow process: its variables by name, the rest from the kernel's figures.

TensorFlow's CPU allocator has no statistics for Python, and gradients and activations of a graph have no names outside
of it. So the total is the growth of the process since before the model was built (resident size, its peak within a
phase), of which variables are named and the remainder is `unattributed`: gradients, activations, buffers of
collectives, TensorFlow's own memory for graphs and threads. The size of the process before that is `rest_of_process`.
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
    """Bytes of one copy of the variables, by category."""
    sizes = {Category.PARAMETERS: sum(map(_nbytes, model.trainable_variables))}
    kinds = {"momentum": Category.FIRST_MOMENT, "velocity": Category.SECOND_MOMENT}
    for variable in optimizer.variables:
        category = kinds.get(variable.name.rpartition("_")[2], Category.OTHER_OPTIMIZER_STATES)
        sizes[category] = sizes.get(category, 0) + _nbytes(variable)
    return sizes


def _nbytes(variable: Any) -> int:
    """Bytes of a Keras variable, whose data type is a NumPy name."""
    return math.prod(map(int, variable.shape)) * int(np.dtype(variable.dtype).itemsize)


class Counter(Protocol):
    """Counts the bytes of a process on its device, without knowledge of variables."""

    note: str
    """Note for readers of the figures."""

    def start(self) -> bool:
        """Reset the peak; returns False if there is no peak."""

    def now(self) -> int | None:
        """Bytes now; None if unknown."""

    def peak(self) -> int | None:
        """Most bytes since `start`."""

    def host_before(self) -> int | None:
        """Resident memory of the process that is not on the device; None if the device is not the host."""


class ProcessGrowth:
    """Counter for a CPU: growth of the process since this object was created."""

    note = (
        "device memory is process growth since before the model was built; only variables are named: "
        "gradients and activations are inside TensorFlow's graph, in unattributed"
    )

    def __init__(self) -> None:
        self._before = host.resident_bytes()

    def start(self) -> bool:
        """Reset the kernel's peak."""
        return host.reset_peak_resident()

    def now(self) -> int:
        """Growth of the resident size."""
        return host.resident_bytes() - self._before

    def peak(self) -> int | None:
        """Growth at the kernel's peak."""
        peak = host.peak_resident_bytes()
        return None if peak is None else peak - self._before

    def host_before(self) -> int | None:
        """Resident size before."""
        return self._before


class TpuMemory:
    """Counter for a TPU: sum of TensorFlow's figures for the cores of this process
    (tensorflow/python/framework/config.py, get_memory_info).
    """

    note = (
        "device memory is TensorFlow's figure for the TPU cores; only variables are named: gradients and "
        "activations are inside XLA's program, in unattributed"
    )

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices

    def start(self) -> bool:
        """Reset TensorFlow's peaks; False without any, as may be for a TPU over the network."""
        try:
            for device in self._devices:
                tf.config.experimental.reset_memory_stats(device)
        except ValueError:
            return False
        return True

    def now(self) -> int | None:
        """Bytes on all cores; None if unknown."""
        try:
            return self._sum("current")
        except ValueError:
            return None

    def peak(self) -> int | None:
        """Sum of the peaks of all cores, each at its own time."""
        return self._sum("peak")

    def host_before(self) -> int | None:
        """None: the device's memory is not part of the process."""
        return None

    def _sum(self, key: str) -> int:
        return sum(int(tf.config.experimental.get_memory_info(device)[key]) for device in self._devices)


class MemoryBook:
    """Rows of each phase bracketed by `phase`; created before the model is built."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.named: Mapping[Category, int] = {}
        """Bytes of variables, once they exist."""
        self._rows: dict[tuple[StepKind, Phase], list[MemoryRow]] = {}
        self._process: dict[tuple[StepKind, Phase], ProcessMemory] = {}

    @property
    def rows(self) -> list[MemoryRow]:
        """Memory rows of all phases."""
        return [row for rows in self._rows.values() for row in rows]

    @property
    def process_rows(self) -> list[ProcessMemory]:
        """Process memory from the kernel at the end of each phase."""
        return list(self._process.values())

    def peak_bytes(self, step: StepKind, phase: Phase) -> int | None:
        """Peak growth of the process within a phase."""
        rows = self._rows[step, phase]
        totals = (row for row in rows if (row.place, row.category) == (Place.DEVICE, Category.TOTAL))
        return next((row.at_peak_bytes for row in totals), None)

    @contextmanager
    def phase(self, step: StepKind, phase: Phase) -> Iterator[None]:
        """Account for a phase; a repeated phase replaces the earlier one."""
        has_host_peak, has_peak = host.reset_peak_resident(), self.counter.start()
        yield
        live, at_peak = self.counter.now(), self.counter.peak() if has_peak else None
        host_peak = host.peak_resident_bytes() if has_host_peak else None
        self._process[step, phase] = host.process_memory(
            step, phase, host.resident_bytes(), host_peak, pinned_bytes=None
        )
        self._rows[step, phase] = list(self._account(step, phase, live, at_peak))

    def _account(self, step: StepKind, phase: Phase, live: int | None, at_peak: int | None) -> Iterator[MemoryRow]:
        before, process = self.counter.host_before(), self._process[step, phase]
        rest = (process.rss_bytes, process.peak_rss_bytes) if before is None else (before, before)
        figures: dict[tuple[Place, Category], tuple[int, int | None]] = {
            **({} if live is None else self._device_figures(live, at_peak)),
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

    def _device_figures(self, live: int, at_peak: int | None) -> dict[tuple[Place, Category], tuple[int, int | None]]:
        """Named bytes, remainder and total, at the end of the phase and at its peak."""
        named = sum(self.named.values())
        return {
            **{(Place.DEVICE, category): (nbytes, nbytes) for category, nbytes in self.named.items()},
            (Place.DEVICE, Category.UNATTRIBUTED): (live - named, None if at_peak is None else at_peak - named),
            (Place.DEVICE, Category.TOTAL): (live, at_peak),
        }
