"""Terminal tables of memory: where the bytes are at the peak, over the ranks, on the host, and on NVMe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from zerobench.records import Category, Place, StepKind
from zerobench.report.column_units import Unit, byte_unit, show_percent
from zerobench.report.memory_view import Instant, largest_peak, peaks_by_rank
from zerobench.report.speed import nvme_bytes_per_s
from zerobench.report.stats import RankSpread, spread_over_ranks
from zerobench.report.terminal.layout import WIDE, Column, Section, Shown, table
from zerobench.report.trials import completed, roles, workers
from zerobench.spec.roles import Role
from zerobench.spec.trial import Offload

Peaks = list[tuple[Shown, Instant]]


def memory_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """Device memory, its spread over ranks, and host memory and NVMe where states are offloaded."""
    ran = [one for one in shown if completed(one.trial)]
    if peaks := _steady_peaks(ran, Place.DEVICE):
        yield _device(peaks, width)
    if spreads := [(one, row) for one in ran if (row := _RanksRow.of(one)) is not None]:
        yield _over_ranks(spreads, width)
    offloaded = [one for one in ran if _offloads(one)]
    if peaks := _steady_peaks(offloaded, Place.HOST):
        yield _host(peaks, width)
    if rows := [(one, _NvmeRow(one)) for one in offloaded if _offloads(one, Offload.NVME)]:
        yield _nvme(rows, width)


def _steady_peaks(shown: Sequence[Shown], place: Place) -> Peaks:
    """The largest peak of each trial; of one with a server, of the server and of its workers."""
    found = [(one, largest_peak(one.trial, StepKind.STEADY, place, role)) for one in shown for role in roles(one.trial)]
    return [(one, instant) for one, instant in found if instant is not None]


def _offloads(shown: Shown, *places: Offload) -> bool:
    spec = shown.trial.spec
    return bool({spec.offload_optimizer, spec.offload_param} & set(places or (Offload.CPU, Offload.NVME)))


def _group(unit: Unit, *names: str) -> Callable[[Instant], str]:
    return lambda instant: unit.show(instant.group_bytes(*names))


_WHERE = (
    Column[Instant]("rank", "rank", lambda instant: instant.rank_text),
    Column[Instant]("phase", None, lambda instant: instant.phase.value, is_text=True),
)
"""Where the peak lies."""


def _lasting(unit: Unit) -> list[Column[Instant]]:
    """What outlives a phase: the same in device and host memory."""
    return [
        Column("parameters", "param", _group(unit, "parameters")),
        Column("gradients", "grad", _group(unit, "gradients")),
        Column("optimizer", "optim", _group(unit, "optimizer")),
        Column("buffers", "buffer", _group(unit, "buffers")),
    ]


def category_columns(unit: Unit) -> list[Column[Instant]]:
    """The columns of device memory that add up to the peak, and the peak."""
    return [
        *_lasting(unit),
        Column("activations", "activ", _group(unit, "activations")),
        Column("logits", "logits", _group(unit, "logits")),
        Column("temporaries", None, _group(unit, "temporaries")),
        Column("small", None, _group(unit, "small", "process")),
        Column(None, "temp", _group(unit, "temporaries", "small", "process")),
        Column("unattributed", "unattr", _group(unit, "unattributed")),
        Column[Instant]("peak", "peak", lambda instant: unit.show(instant.total_bytes)),
    ]


def _device(peaks: Peaks, width: int) -> Section:
    unit = byte_unit(instant.total_bytes for _, instant in peaks)
    columns = [
        *_WHERE,
        *category_columns(unit),
    ]
    return Section(
        f"Device memory at the peak of a steady step, {unit.name}",
        "The rank with the largest peak, at the instant of it; the columns add up to the peak. optimizer: fp32 weights "
        "and moments. buffers: for communication, gathered parameters included. "
        + (
            "temporaries: what kernels work in on a CPU included. small: inputs, model buffers, rounding."
            if width >= WIDE
            else "temp: temporaries, what kernels work in on a CPU, inputs, rounding."
        )
        + (" A server has a row of its own." if any(peak.role == Role.SERVER for _, peak in peaks) else ""),
        table(columns, peaks, width),
    )


class _RanksRow:
    """Steady peaks over the ranks, and the largest start-up peak."""

    def __init__(self, spread: RankSpread, num_ranks: int, start_up_bytes: int | None) -> None:
        self.spread = spread
        self.num_ranks = num_ranks
        self.start_up_bytes = start_up_bytes

    @classmethod
    def of(cls, shown: Shown) -> _RanksRow | None:
        role = Role.WORKER.value if workers(shown.trial) else None
        steady = peaks_by_rank(shown.trial, StepKind.STEADY, Place.DEVICE, role)
        spread = spread_over_ranks({rank: instant.total_bytes for rank, instant in steady.items()})
        first = largest_peak(shown.trial, StepKind.FIRST, Place.DEVICE, role)
        if spread is None:
            return None
        return cls(spread, len(steady), None if first is None else first.total_bytes)


def odd_rank(spread: RankSpread | None) -> str:
    """`r3 +12.1%`: which rank lies farthest from the median, and how far; `none` where all are equal."""
    if spread is None or spread.odd_rank is None:
        return "none"
    return f"r{spread.odd_rank} {show_percent(spread.odd_deviation, signed=True)}"


def _over_ranks(rows: list[tuple[Shown, _RanksRow]], width: int) -> Section:
    unit = byte_unit(max(row.spread.maximum, row.start_up_bytes or 0) for _, row in rows)
    columns = [
        Column[_RanksRow]("ranks", "ranks", lambda row: str(row.num_ranks)),
        Column[_RanksRow]("min", "min", lambda row: unit.show(row.spread.minimum)),
        Column[_RanksRow]("median", "median", lambda row: unit.show(row.spread.median)),
        Column[_RanksRow]("max", "max", lambda row: unit.show(row.spread.maximum)),
        Column[_RanksRow]("odd rank", "odd rank", lambda row: odd_rank(row.spread)),
        Column[_RanksRow]("start-up max", "start-up", lambda row: unit.show(row.start_up_bytes)),
    ]
    return Section(
        f"Device memory over the ranks, {unit.name}",
        "Peaks of a steady step; the odd rank lies farthest from the median. start-up: the largest peak of "
        "initialization and the first step."
        + (" A server is not among the ranks." if any(len(roles(one.trial)) > 1 for one, _ in rows) else ""),
        table(columns, rows, width),
    )


def _host(peaks: Peaks, width: int) -> Section:
    unit = byte_unit(instant.total_bytes for _, instant in peaks)
    rest = ("activations", "logits", "temporaries", "small")
    columns = [
        *_WHERE,
        *_lasting(unit),
        Column("other tensors", "other", _group(unit, *rest)),
        Column("process", "proc", _group(unit, "process")),
        Column("unattributed", "unattr", _group(unit, "unattributed")),
        Column[Instant]("peak", "peak", lambda instant: unit.show(instant.total_bytes)),
    ]
    process = "process" if width >= WIDE else "proc"
    return Section(
        f"Host memory of one rank at the peak of a steady step, {unit.name}",
        "Offloaded states; the rank with the largest peak. buffers: pinned and staging buffers. "
        f"{process}: the interpreter and its libraries.",
        table(columns, peaks, width),
    )


class _NvmeRow:
    """What lies on NVMe at the end of a steady step on the rank that has most there, and how fast it moved."""

    def __init__(self, shown: Shown) -> None:
        rows = [(rank, row) for rank in shown.trial.ranks for row in rank.memory]
        held = [row.live_bytes for _, row in rows if row.place is Place.NVME and row.category is Category.TOTAL]
        self.held_bytes = max(held, default=None)
        self.read_bytes_per_s, self.write_bytes_per_s = nvme_bytes_per_s(shown.trial)


def _nvme(rows: list[tuple[Shown, _NvmeRow]], width: int) -> Section:
    unit = byte_unit(row.held_bytes for _, row in rows)
    speed = Unit("GB/s", 1e9, 2)
    columns = [
        Column[_NvmeRow](f"held, {unit.name}", f"held, {unit.name}", lambda row: unit.show(row.held_bytes)),
        Column[_NvmeRow]("read, GB/s", "read, GB/s", lambda row: speed.show(row.read_bytes_per_s)),
        Column[_NvmeRow]("written, GB/s", "written, GB/s", lambda row: speed.show(row.write_bytes_per_s)),
    ]
    return Section(
        "NVMe offload",
        "held: on the rank that has most there. GB/s: bytes of all ranks over the whole steady step, compute included.",
        table(columns, rows, width),
    )
