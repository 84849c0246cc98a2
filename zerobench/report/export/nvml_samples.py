"""NVML samples of a trial with the phase that each fell in, and the energy of the timed steps; streams.

A sample belongs to the phase that the rank on its device was in: the ranks' marks and the sampler share the
clock of the node. Clocks of different nodes are never held against each other: each node's samples are laid under the
marks of its own ranks, and its energy is that of its own ranks' timed steps. Devices that no rank names go by the
first rank of the node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from zerobench.common.errors import UserError
from zerobench.records.records import NvmlSummary, RankRecord
from zerobench.records.store import Trial
from zerobench.report.export.sinks import TableSink
from zerobench.report.figures.nodes import ranks_of, samples_file
from zerobench.report.figures.nvml_view import bare_uuid

Floats = npt.NDArray[np.float64]
Window = tuple[float, float]
"""Unix times, by the clock of one node."""
_TYPES = {
    "gpu_uuid": pa.string(),
    "t_s": pa.float64(),
    "used_bytes": pa.int64(),
    "reserved_bytes": pa.int64(),
    "power_watts": pa.float64(),
    "energy_joules": pa.float64(),
}


def write_samples(trial: Trial, sink: TableSink) -> float | None:
    """Add every NVML sample of `trial` to `sink`; return the energy of its timed steps in joules.

    The energy is that of the trial's devices together, on each node from its first timed step's begin to its last
    one's end. None where a device told neither energy nor power around that time.

    Raises:
        UserError: a file of samples is corrupt.

    """
    meter = EnergyMeter()
    for summary in trial.record.nvml:
        path, ranks = samples_file(trial.folder, summary), ranks_of(trial.ranks, summary)
        window = timed_window(ranks)
        for batch in read_samples(path) if path.exists() else ():
            for uuid in pc.unique(batch["gpu_uuid"]).to_pylist():
                of_device = batch.filter(pc.equal(batch["gpu_uuid"], uuid))
                sink.add(_rows(trial, summary, PhaseLine.of(_marks_for(uuid, ranks)), of_device, sink.schema))
                if _is_used(uuid, ranks):
                    meter.add((summary.hostname, summary.node, uuid), of_device, window)
    return meter.joules()


_WAY_OUT = "removing it loses only the memory curve and energy of its trial"


def read_samples(path: Path) -> Iterator[Any]:
    """The samples in `path` as pyarrow record batches.

    A last line without its newline is left out: that is what a sampler leaves that was killed while writing.

    Raises:
        UserError: another line is not a sample.

    """
    size = _end_of_last_line(path)
    if size == 0:
        return
    with pa.memory_map(str(path)) as file:
        whole = file.read_buffer(size)
        options = pa_csv.ConvertOptions(column_types=_TYPES, include_columns=list(_TYPES), strings_can_be_null=True)
        try:
            yield from pa_csv.open_csv(pa.BufferReader(whole), convert_options=options)
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise UserError(f"{path}: torn or corrupt: {' '.join(str(error).split())}; {_WAY_OUT}") from None


def _end_of_last_line(path: Path) -> int:
    """Bytes of `path` up to and with its last newline."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 65536))
        tail = file.read()
    return size - len(tail) + tail.rfind(b"\n") + 1


@dataclass(frozen=True)
class PhaseLine:
    """A rank's phases on the line of time."""

    starts_s: Floats
    ends_s: Floats
    names: Any
    """pyarrow array, one name a phase."""

    @classmethod
    def of(cls, rank: RankRecord | None) -> PhaseLine:
        """The phases that `rank` marked; none without a rank."""
        marks = sorted(rank.marks, key=lambda mark: mark.start_s) if rank else []
        return cls(
            np.array([mark.start_s for mark in marks], dtype=np.float64),
            np.array([mark.end_s for mark in marks], dtype=np.float64),
            pa.array([mark.phase.value for mark in marks], type=pa.string()),
        )

    def at(self, times_s: Floats) -> Any:
        """The name of the phase at each time, null between phases, as a pyarrow array."""
        if len(self.starts_s) == 0:
            return pa.nulls(len(times_s), pa.string())
        index = np.searchsorted(self.starts_s, times_s, side="right") - 1
        outside = (index < 0) | (times_s > self.ends_s[index])
        return self.names.take(pa.array(index, mask=outside))


def timed_window(ranks: Sequence[RankRecord]) -> Window | None:
    """Unix times at which the first timed step began and the last one ended, over ranks that share a clock.

    None where none timed a step.
    """
    timed = [mark for rank in ranks for mark in rank.marks if mark.kind == "timed"]
    if not timed:
        return None
    return min(mark.start_s for mark in timed), max(mark.end_s for mark in timed)


class EnergyMeter:
    """Energy of devices, each over a window of time on the clock of its node.

    By the driver's running counter where a device has one (interpolated between the readings around the ends of the
    window), else by power, integrated by the trapezoid rule: power as NVML gives it is a mean over the last
    second on some GPUs (Yang et al., arXiv 2312.02741), so the counter is the better witness.
    """

    def __init__(self) -> None:
        self._pieces: dict[tuple[Hashable, Window | None], list[Floats]] = {}

    def add(self, device: Hashable, batch: Any, window: Window | None) -> None:
        """Take samples of one device, in the order of time; most hold neither power nor energy and are dropped."""
        columns = np.stack([_floats(batch[name]) for name in ("t_s", "power_watts", "energy_joules")])
        is_known = ~np.isnan(columns[1:]).all(axis=0)
        self._pieces.setdefault((device, window), []).append(columns[:, is_known])

    def joules(self) -> float | None:
        """Energy of all devices together; None unless it is known of each."""
        pieces_by_window = self._pieces.items()
        parts = [_device_samples(np.concatenate(pieces, axis=1), window) for (_, window), pieces in pieces_by_window]
        known = [part for part in parts if part is not None]
        return sum(known) if known and len(known) == len(parts) else None


def _device_samples(samples: Floats, window: Window | None) -> float | None:
    if window is None:
        return None
    times, watts, joules = samples
    if (counted := _enclosing(times, joules, window)) is not None:
        start, end = np.interp(window, *counted)
        return float(end - start)
    powers = _enclosing(times, watts, window)
    return None if powers is None else _integral(*powers, window)


def _enclosing(times_s: Floats, values: Floats, window: Window) -> tuple[Floats, Floats] | None:
    """The readings that have a value; None where they do not enclose the window."""
    known = ~np.isnan(values)
    times_s, values = times_s[known], values[known]
    is_enclosed = len(times_s) >= 2 and times_s[0] <= window[0] and times_s[-1] >= window[1]
    return (times_s, values) if is_enclosed else None


def _integral(times_s: Floats, watts: Floats, window: Window) -> float:
    inside = times_s[(times_s > window[0]) & (times_s < window[1])]
    points = np.concatenate([[window[0]], inside, [window[1]]])
    power = np.interp(points, times_s, watts)
    return float(np.sum(np.diff(points) * (power[1:] + power[:-1]) / 2))


def _floats(column: Any) -> Floats:
    """A pyarrow column as float64, null as NaN."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _is_used(uuid: str, ranks: Sequence[RankRecord]) -> bool:
    """True if a rank runs on the device, or if no rank names its own."""
    named = {bare_uuid(rank.device_uuid) for rank in ranks if rank.device_uuid}
    return not named or bare_uuid(uuid) in named


def _marks_for(uuid: str, ranks: Sequence[RankRecord]) -> RankRecord | None:
    """The rank whose marks say what the device was doing."""
    on_device = (rank for rank in ranks if rank.device_uuid and bare_uuid(rank.device_uuid) == bare_uuid(uuid))
    return next(on_device, next(iter(ranks), None))


def _rows(trial: Trial, node: NvmlSummary, line: PhaseLine, batch: Any, schema: Any) -> Any:
    """The batch's samples, all of one device, as rows of the table `nvml`."""
    num_rows = batch.num_rows
    columns = {name: batch[name] for name in _TYPES if name in schema.names}
    columns["run_id"] = pa.repeat(trial.record.run_id, num_rows)
    columns["trial_id"] = pa.repeat(trial.record.trial_id, num_rows)
    columns["hostname"] = pa.repeat(node.hostname, num_rows)
    columns["node"] = pa.repeat(pa.scalar(node.node, pa.int64()), num_rows)
    columns["phase"] = line.at(_floats(batch["t_s"]))
    return pa.table([columns[name] for name in schema.names], schema=schema)
