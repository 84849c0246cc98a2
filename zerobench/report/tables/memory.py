"""Memory: where the bytes are at the peak, how far ranks lie apart, what offloading keeps on the host and on NVMe."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Place
from zerobench.config.derived.roles import Role
from zerobench.config.trial.trial import Offload
from zerobench.records.instants import Instant
from zerobench.report.figures.stats import RankSpread, spread_over_ranks
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.figures.trial_parts import RankFigures
from zerobench.report.tables.model import Column, Table, figures_of, in_unit, lines_of, unit_column
from zerobench.report.words.column_units import Unit, byte_unit, show_percent

DEVICE = "Memory by category"
RANKS = "Memory across ranks"
HOST = "Host memory"
NVME = "NVMe offload"


@dataclass(frozen=True)
class Peak:
    """The steady peak of one place on one rank, beside the largest peaks of its trial."""

    instant: Instant
    start_up_bytes: int | None
    host_peak_bytes: int | None
    share_of_capacity: float | None


def _instants(trial: TrialFigures, place: Place) -> list[Instant]:
    """The steady peaks of a whole trial; of one with a server, of the server and of its workers."""
    return [instant for where, instant in trial.steady if where is place and trial.is_whole]


def _peaks(trial: TrialFigures) -> list[Peak]:
    instants = _instants(trial, Place.DEVICE)
    start_up = {role: _start_up(rank for rank in trial.ranks if rank.role == role) for role in trial.roles}
    return [
        Peak(instant, start_up.get(instant.role), trial.host_peak_bytes, trial.share_of_capacity)
        for instant in instants
    ]


def _start_up(ranks: Iterable[RankFigures]) -> int | None:
    return max((rank.first_peak_bytes for rank in ranks if rank.first_peak_bytes is not None), default=None)


WHERE: Sequence[Column[Instant]] = (
    Column("rank", lambda instant: instant.rank_text, narrow="rank"),
    Column("phase", lambda instant: instant.phase.value, is_text=True),
)
"""Position of the peak."""


def _group(name: str, unit: Unit, *groups: str, narrow: str | None = None) -> Column[Instant]:
    """A column of the categories of `groups`, of the group of its own name without them."""
    parts = groups or (name,)
    return Column(name, lambda instant: unit.show(instant.group_bytes(*parts)), unit.name, name, narrow)


def category_columns(unit: Unit) -> list[Column[Instant]]:
    """The columns of device memory that add up to the peak, and the peak."""
    few = ("temporaries", "small", "process")
    return [
        *_lasting(unit),
        _group("activations", unit, narrow="activ"),
        _group("logits", unit, narrow="logits"),
        _group("temporaries", unit),
        _group("small", unit, "small", "process"),
        Column("", lambda instant: unit.show(instant.group_bytes(*few)), wide=None, narrow="temp", is_for_files=False),
        _group("unattributed", unit, narrow="unattr"),
        _peak(unit),
    ]


def _lasting(unit: Unit) -> list[Column[Instant]]:
    """Columns of what outlives a phase: the same in device and host memory."""
    names = {"parameters": "param", "gradients": "grad", "optimizer": "optim", "buffers": "buffer"}
    return [_group(name, unit, narrow=narrow) for name, narrow in names.items()]


def _peak(unit: Unit) -> Column[Instant]:
    return Column("peak", lambda instant: unit.show(instant.total_bytes), unit.name, "peak", "peak")


def device_table(trials: Sequence[TrialFigures]) -> Table[Peak]:
    """A row for each trial whose device peak in a steady step is known."""
    lines = lines_of(trials, _peaks)
    unit = byte_unit(line.figures.instant.total_bytes for line in lines)
    has_server = any(line.figures.instant.role == Role.SERVER for line in lines)
    caption = (
        "Rank with the largest peak, at the peak; columns add up to it. optimizer: fp32 weights and "
        "moments. buffers: communication, including gathered parameters. "
    )
    server = " Servers: separate rows." if has_server else ""
    many = "temporaries: including CPU kernel workspace. small: inputs, model buffers, rounding."
    few = "temp: temporaries, CPU kernel workspace, inputs, rounding."
    columns = [
        *(column.over(lambda row: row.instant) for column in (*WHERE, *category_columns(unit))),
        _file_column("start-up", in_unit(unit, lambda row: row.start_up_bytes), unit.name),
        _file_column("host peak", in_unit(unit, lambda row: row.host_peak_bytes), unit.name),
        _file_column("of the GPU", lambda row: show_percent(row.share_of_capacity), "%"),
    ]
    return Table(
        DEVICE,
        f"{caption}{many}{server}",
        columns,
        lines,
        narrow_caption=f"{caption}{few}{server}",
        more_for_files=(
            "start-up: peak of initialization and the first step. host peak: largest rank, over all "
            "steps. of the GPU: larger device peak over capacity."
        ),
        heading=f"Device memory at the peak of a steady step, {unit.name}",
    )


def _file_column(name: str, cell: Callable[[Peak], str], unit: str) -> Column[Peak]:
    """A column that a terminal has no room for."""
    return Column(name, cell, unit, wide=None)


@dataclass(frozen=True)
class OverRanks:
    """Steady peaks over the ranks, and the largest start-up peak."""

    spread: RankSpread
    num_ranks: int
    start_up_bytes: int | None


def rank_spreads(trial: TrialFigures) -> list[OverRanks]:
    """Spread over the ranks of a whole trial; a server is none of them."""
    known = {rank.rank: rank.device_peak_bytes for rank in trial.among_ranks if rank.device_peak_bytes is not None}
    spread = spread_over_ranks(known)
    if spread is None or not trial.is_whole:
        return []
    return [OverRanks(spread, len(known), _start_up(trial.among_ranks))]


def odd_rank(spread: RankSpread | None) -> str:
    """`r3 +12.1%`: which rank lies farthest from the median, and how far; `none` where all are equal."""
    if spread is None or spread.odd_rank is None:
        return "none"
    return f"r{spread.odd_rank} {show_percent(spread.odd_deviation, signed=True)}"


def rank_spread_table(trials: Sequence[TrialFigures]) -> Table[OverRanks]:
    """A row for each trial whose ranks measured a steady peak."""
    lines = lines_of(trials, rank_spreads)
    unit = byte_unit(max(row.spread.maximum, row.start_up_bytes or 0) for row in figures_of(lines))
    shown = {line.trial.trial_id for line in lines}
    has_server = any(len(trial.roles) > 1 for trial in trials if trial.trial_id in shown)
    columns: list[Column[OverRanks]] = [
        Column("ranks", lambda row: str(row.num_ranks), narrow="ranks"),
        Column("min", lambda row: unit.show(row.spread.minimum), unit.name, "min", "min"),
        Column("median", lambda row: unit.show(row.spread.median), unit.name, "median", "median"),
        Column("max", lambda row: unit.show(row.spread.maximum), unit.name, "max", "max"),
        Column("outlier rank", lambda row: odd_rank(row.spread), narrow="outlier rank"),
        unit_column("start-up max", unit, lambda row: row.start_up_bytes, "start-up max", "start-up"),
    ]
    return Table(
        RANKS,
        (
            "Peaks of a steady step; outlier rank: farthest from the median. start-up: largest peak "
            "of initialization and the first step."
        )
        + (" Without servers." if has_server else ""),
        columns,
        lines,
        heading=f"Device memory across ranks, {unit.name}",
    )


def host_table(trials: Sequence[TrialFigures]) -> Table[Instant]:
    """A row for each trial that offloads states."""
    lines = lines_of((trial for trial in trials if trial.offloads()), lambda trial: _instants(trial, Place.HOST))
    unit = byte_unit(line.figures.total_bytes for line in lines)
    rest = ("activations", "logits", "temporaries", "small")
    columns = [
        *WHERE,
        *_lasting(unit),
        _group("other tensors", unit, *rest, narrow="other"),
        _group("process", unit, narrow="proc"),
        _group("unattributed", unit, narrow="unattr"),
        _peak(unit),
    ]
    caption = "Offloaded states; the rank with the largest peak. buffers: pinned and staging buffers. "
    libraries = ": the interpreter and its libraries."
    return Table(
        HOST,
        f"{caption}process{libraries}",
        columns,
        lines,
        narrow_caption=f"{caption}proc{libraries}",
        heading=f"Host memory of one rank at the peak of a steady step, {unit.name}",
    )


def nvme_table(trials: Sequence[TrialFigures]) -> Table[TrialFigures]:
    """A row for each trial that offloads to NVMe: what lies there, and how fast it moved."""
    lines = lines_of(trials, lambda trial: [trial] if trial.is_whole and trial.offloads(Offload.NVME) else [])
    unit, speed = byte_unit(trial.nvme_held_bytes for trial in figures_of(lines)), Unit("GB/s", 1e9, 2)
    columns: list[Column[TrialFigures]] = [
        unit_column("held", unit, lambda trial: trial.nvme_held_bytes, narrow=f"held, {unit.name}"),
        unit_column("read", speed, lambda trial: trial.nvme_read_bytes_per_s, narrow="read, GB/s"),
        unit_column("written", speed, lambda trial: trial.nvme_write_bytes_per_s, narrow="written, GB/s"),
    ]
    return Table(NVME, "held: largest rank. GB/s: all ranks, averaged over the whole steady step.", columns, lines)
