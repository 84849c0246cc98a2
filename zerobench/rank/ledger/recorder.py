"""Records each phase: times in timed steps, the ledger in memory steps, never both, since tracking slows a step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zerobench.common.block_io import BlockIo, read_block_io, swap_file_bytes
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger.device import Clock, Device
from zerobench.rank.ledger.device_peaks import PHASE
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.ledger import Ledger
from zerobench.rank.ledger.traffic import Traffic
from zerobench.rank.nvml.nvml import DeviceReader
from zerobench.records.records import DeviceMemory, MemoryRow, NvmeTraffic, PhaseMark, StepTime


class Marks:
    """Begin and end of each phase, and the current one."""

    def __init__(self) -> None:
        self.marks: list[PhaseMark] = []
        self.phase: Phase = Phase.INIT
        self.step_index = -1
        self.kind = "first"

    @contextmanager
    def mark(self, phase: Phase) -> Iterator[None]:
        """Bracket a phase; after a failure `phase` still names it."""
        self.phase = phase
        start = time.time()
        yield
        self.marks.append(
            PhaseMark(step_index=self.step_index, kind=self.kind, phase=phase, start_s=start, end_s=time.time())
        )


class PlainPhases:
    """A warm-up step: only marks."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        with self._marks.mark(phase):
            yield

    def mark_loss(self, loss: torch.Tensor) -> None:
        pass

    def elsewhere(self) -> AbstractContextManager[None]:
        """Do nothing: there is no ledger."""
        return nullcontext()

    def came_in(self, tensor: torch.Tensor, category: Category) -> None:
        pass


class TimedPhases(PlainPhases):
    """A timed step: two clock marks around each phase, nothing else."""

    def __init__(self, device: Device, marks: Marks) -> None:
        super().__init__(marks)
        self._device = device
        self._clock = Clock(device)
        self._spans: list[tuple[Phase, Any, Any]] = []
        # Taken once, so that marks of later steps do not jump when the wall clock is set.
        self._unix_offset = time.time() - time.perf_counter()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self._marks.phase = phase
        start = self._clock.mark()
        yield
        self._spans.append((phase, start, self._clock.mark()))

    @contextmanager
    def step(self, into: list[StepTime]) -> Iterator[None]:
        """Time a whole step, device-synchronised at both ends."""
        self._spans = []
        self._device.synchronize()
        start = time.perf_counter()
        yield
        self._device.synchronize()
        end = time.perf_counter()
        into.append(self._summary(end - start))
        self._note_marks(start, end)

    def _summary(self, step_s: float) -> StepTime:
        seconds = dict.fromkeys(Phase, 0.0)
        for phase, start, end in self._spans:
            seconds[phase] += self._clock.seconds(start, end)
        return StepTime(
            step_s=step_s,
            forward_s=seconds[Phase.FORWARD],
            backward_s=seconds[Phase.BACKWARD],
            optimizer_s=seconds[Phase.STEP],
        )

    def _note_marks(self, start: float, end: float) -> None:
        """Place the phases on the wall clock; on CUDA by their device times, from the start of the step."""
        position = start
        for phase, begun, done in self._spans:
            length = self._clock.seconds(begun, done)
            self._marks.marks.append(
                PhaseMark(
                    step_index=self._marks.step_index,
                    kind=self._marks.kind,
                    phase=phase,
                    start_s=self._unix_offset + position,
                    end_s=self._unix_offset + min(position + length, end),
                )
            )
            position += length


RowKey = tuple[StepKind, Phase]


class DeviceRows:
    """Figures of the device's allocator and driver at the end of each phase."""

    def __init__(self, device: Device, nvml: DeviceReader | None) -> None:
        self.rows: dict[RowKey, DeviceMemory] = {}
        self._device = device
        self._nvml = nvml

    def start(self) -> None:
        """Do nothing: the ledger resets the allocator's peaks."""

    def note(self, step: StepKind, phase: Phase, peak_occupied_bytes: int | None) -> None:
        """Read allocator and driver; `peak_occupied_bytes` comes from the ledger, out of the allocator's history."""
        reading = self._nvml.read(power=False) if self._nvml is not None else None
        stats = PHASE.stats(self._device.torch_device)
        self.keep(
            DeviceMemory(
                step=step,
                phase=phase,
                allocated_bytes=stats["allocated_bytes.all.current"],
                peak_allocated_bytes=stats["allocated_bytes.all.peak"],
                reserved_bytes=stats["reserved_bytes.all.current"],
                peak_reserved_bytes=stats["reserved_bytes.all.peak"],
                alloc_retries=stats["num_alloc_retries"],
                nvml_used_bytes=None if reading is None else reading.used_bytes,
                nvml_process_bytes=None if self._nvml is None else self._nvml.process_bytes(os.getpid()),
                peak_occupied_bytes=peak_occupied_bytes,
            )
        )

    def keep(self, new: DeviceMemory) -> None:
        """Keep a row; a phase entered twice keeps its larger peaks."""
        old = self.rows.get((new.step, new.phase))
        if old is not None:
            new.peak_allocated_bytes = max(new.peak_allocated_bytes, old.peak_allocated_bytes)
            new.peak_reserved_bytes = max(new.peak_reserved_bytes, old.peak_reserved_bytes)
            new.peak_occupied_bytes = max(new.peak_occupied_bytes or 0, old.peak_occupied_bytes or 0) or None
        self.rows[new.step, new.phase] = new


class MemoryPhases:
    """A memory step: ledger, allocator, driver, block devices, collectives."""

    def __init__(
        self,
        ledger: Ledger,
        device: Device,
        marks: Marks,
        nvme: NvmeAccount,
        traffic: Traffic,
        rows: DeviceRows | None,
        settle: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._device = device
        self._marks = marks
        self._nvme = nvme
        self._traffic = traffic
        self._rows = rows
        self._settle = settle
        self.kind = StepKind.FIRST

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Account for the phase; the driver is read at its end."""
        if self._rows is not None:
            self._rows.start()
        with self._marks.mark(phase), self._ledger.phase(self.kind, phase):
            with self._nvme.phase(self.kind, phase), self._traffic.counted(self.kind, phase):
                yield
                with self._traffic.paused():
                    self._device.synchronize()
            self._settle()  # inside the ledger's phase, but outside the time of swapping
        if self._rows is not None:
            self._rows.note(self.kind, phase, self._ledger.peak_occupied_bytes)

    def mark_loss(self, loss: torch.Tensor) -> None:
        """Pass the loss to the ledger, which separates its part of the graph."""
        self._ledger.mark_loss(loss)

    def elsewhere(self) -> AbstractContextManager[None]:
        """Let the ledger account for another thread too."""
        return self._ledger.elsewhere()

    def came_in(self, tensor: torch.Tensor, category: Category) -> None:
        """Count and name a tensor that no operation made."""
        self._ledger.names.identify([NamedTensor(tensor, category)])


_GLOO_MOMENT_S = 0.05


def settle_collectives() -> None:
    """Wait a moment for gloo's threads: they release a collective's tensors only after it has returned.

    Without the wait, one phase of thirty counts tensors of its last collective as live.
    """
    if dist.is_initialized() and dist.get_backend() == "gloo":
        time.sleep(_GLOO_MOMENT_S)


class NvmeAccount:
    """Bytes swapped in each phase and the sizes of swap files, for trials that offload to NVMe."""

    def __init__(
        self,
        folder: str | None,
        rank: int,
        block_io: Callable[[], BlockIo | None] = read_block_io,
        file_bytes: Callable[[Path, int], Mapping[str, int]] = swap_file_bytes,
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._rank = rank
        self._block_io = block_io
        self._file_bytes = file_bytes
        self.traffic: dict[tuple[StepKind, Phase], NvmeTraffic] = {}
        self.rows: dict[tuple[StepKind, Phase, Category], MemoryRow] = {}

    def forget(self, step: StepKind) -> None:
        """Drop what was counted in a kind of step, so that only its last repetition is reported."""
        self.traffic = {key: row for key, row in self.traffic.items() if key[0] is not step}

    @contextmanager
    def phase(self, step: StepKind, phase: Phase) -> Iterator[None]:
        """Count bytes that the process reads and writes inside; repeated phases add up."""
        before, start = self._block_io(), time.perf_counter()
        yield
        after = self._block_io()
        if self._folder is None or before is None or after is None:
            return
        seconds, old = time.perf_counter() - start, self.traffic.get((step, phase))
        self.traffic[step, phase] = NvmeTraffic(
            step=step,
            phase=phase,
            read_bytes=after.read_bytes - before.read_bytes + (old.read_bytes if old else 0),
            written_bytes=after.written_bytes - before.written_bytes + (old.written_bytes if old else 0),
            seconds=seconds + (old.seconds if old else 0.0),
        )
        sizes = self._file_bytes(self._folder, self._rank)
        by_category = {
            Category.OPTIMIZER_STATES_ON_NVME: sizes["optimizer"],
            Category.PARAMETERS: sizes["parameters"],
            Category.TOTAL: sum(sizes.values()),
        }
        for category, nbytes in by_category.items():
            self.rows[step, phase, category] = MemoryRow(
                step=step,
                phase=phase,
                place=Place.NVME,
                category=category,
                live_bytes=nbytes,
                at_peak_bytes=None,
                own_peak_bytes=None,
            )
