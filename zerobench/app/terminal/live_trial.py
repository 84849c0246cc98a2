"""Parts of the live screen: the current trial with each GPU's memory by category, and bars of finished trials."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from zerobench.common.errors import UserError
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Place
from zerobench.config.trial.trial import TrialSpec
from zerobench.records import store
from zerobench.records.folder import RunFolder
from zerobench.records.progress import Progress
from zerobench.report.figures.make import trial_figures
from zerobench.report.words import palette
from zerobench.report.words.column_units import plain, show_whole
from zerobench.report.words.labels import labels

FULL = "\N{FULL BLOCK}"
_MOST_LABEL, _FIGURES = 30, 28
"""Columns of the longest name, and of the figures after a bar."""
_SHORTEST = 8
"""Shortest bar and shortest name in columns."""


@dataclass(frozen=True)
class EndedTrial:
    """Name, memory and figures of a finished trial."""

    spec: TrialSpec
    groups: Sequence[tuple[str, int]]
    """Peak bytes of the steady step on the device by group of categories; empty without such a peak."""
    figures: str
    """Peak and speed, or the status."""
    capacity_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.groups)


def ended_trial(run: store.Run, trial_id: str) -> EndedTrial | None:
    """Read a finished trial for the screen; None if its records cannot be read, which the report explains."""
    trial = store.Trial(run, trial_id)
    try:
        figures = trial_figures(trial)
    except (UserError, OSError):
        return None
    peak = figures.peak(Place.DEVICE)
    if not figures.is_whole or peak is None:
        return EndedTrial(trial.spec, (), figures.status.words)
    speed = f"  {show_whole(figures.tokens_per_s)} tokens/s" if figures.tokens_per_s else ""
    groups = [(group, size) for group in palette.CATEGORY_COLOURS if (size := peak.group_bytes(group) or 0) > 0]
    return EndedTrial(trial.spec, groups, f"{format_bytes(peak.total_bytes)}{speed}", figures.capacity_bytes)


def bars(trials: Sequence[EndedTrial], names: Sequence[str], width: int) -> Table:
    """Draw a row per trial on one scale: the device's capacity if a trial comes near it, else the largest peak."""
    label = min(_MOST_LABEL, max(map(len, names)), max(_SHORTEST, width - _FIGURES - _SHORTEST - 4))
    room = max(_SHORTEST, width - label - _FIGURES - 4)
    # One scale for all: a bar is compared with the others, and with the device if it comes near it.
    peaks = [trial.total_bytes for trial in trials]
    capacities = [trial.capacity_bytes for trial in trials]
    largest, capacity = max(peaks, default=0), max((size for size in capacities if size), default=0)
    scale = max(capacity if largest > capacity / 4 else 0, largest, 1)
    table = Table.grid(padding=(0, 1))
    table.add_column(width=label, overflow="fold")
    table.add_column(width=room, no_wrap=True)
    table.add_column(overflow="fold")
    for trial, name in zip(trials, names, strict=True):
        style = "" if trial.groups else "bold red"
        table.add_row(Text(name), stack(trial.groups, scale, room), Text(trial.figures, style))
    return table


def columns_of(num_bytes: int, scale: int, room: int) -> int:
    """Columns for `num_bytes` in a bar of `room` columns that stands for `scale` bytes."""
    return round(num_bytes / scale * room)


def stack(groups: Sequence[tuple[str, int]], scale: int, room: int) -> Text:
    """Draw the parts end to end."""
    # The ends are rounded, not the parts: so the bar is exactly as long as the peak.
    bar, end, drawn = Text(), 0, 0
    for group, size in groups:
        end += size
        columns = columns_of(end, scale, room)
        bar.append(FULL * (columns - drawn), style_of(group))
        drawn = columns
    return bar


def style_of(group: str) -> str:
    """Colour of a group of categories, as on the page."""
    return palette.CATEGORY_COLOURS[group].dark


COMPILING = "DeepSpeed compiles its C++ ops: minutes, once per machine"
MOST_RANKS = 8
"""Ranks shown at most: the fullest ones, the others summarised in one line."""
_ROOM_LEFT = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
_SHORTEST_BAR = 8


def names_of(run: RunFolder) -> Mapping[str, str]:
    """Names of the trials that no rule skips, by trial id; empty if they cannot be read."""
    try:
        stored = store.load_run(run.path)
        ids = [entry.trial_id for entry in stored.plan.trials if entry.reason is None]
        return dict(zip(ids, labels([stored.spec(trial_id) for trial_id in ids]), strict=True))
    except UserError:
        return {}


def describe(ranks: Sequence[Progress]) -> str:
    """Progress of the rank that is furthest behind."""
    if not ranks:
        return "starting"
    if any(rank.phase == "compile" for rank in ranks):
        return COMPILING
    behind = min(ranks, key=lambda rank: (rank.step_index, rank.updated_at_s))
    if 0 <= behind.step_index < behind.num_steps:
        return f"{behind.phase}, step {behind.step_index + 1} of {behind.num_steps}"
    return behind.phase


def memory(ranks: Sequence[Progress]) -> str:
    """Memory of the fullest rank; empty before any rank has reported."""
    largest = max((rank.memory_bytes for rank in ranks if rank.memory_bytes is not None), default=None)
    return "" if largest is None else f"{format_bytes(largest)} on the largest rank"


def speed(ranks: Sequence[Progress]) -> str:
    """Tokens/s at the pace of the slowest rank; empty before a step was timed."""
    slowest = min((rank.tokens_per_s for rank in ranks if rank.tokens_per_s), default=None)
    return "" if slowest is None else f"{show_whole(slowest)} tokens/s"


def share_done(ranks: Sequence[Progress]) -> float:
    """Fraction of the trial's steps done by the slowest rank."""
    return min((max(0, rank.step_index) / max(1, rank.num_steps) for rank in ranks), default=0.0)


def ranks_view(ranks: Sequence[Progress], most: int = MOST_RANKS) -> RenderableType:
    """Draw a row per rank, at most the `most` fullest ones."""
    devices = Counter(rank.device_name for rank in ranks if rank.device_name)
    devices_text = ", ".join(f"{count} x {device}" for device, count in devices.items())
    by_need = sorted(ranks, key=lambda rank: (-_peak_bytes(rank), rank.rank))
    shown, others = sorted(by_need[:most], key=lambda rank: rank.rank), by_need[most:]
    parts: list[RenderableType] = [Text(plain(devices_text), "dim"), _table(shown)] if devices_text else [_table(shown)]
    if others:
        least, largest = format_bytes(_peak_bytes(others[-1])), format_bytes(_peak_bytes(others[0]))
        parts.append(Text(f"and {len(others)} more: peaks of {least} to {largest}", "dim"))
    return Group(*parts)


def groups_of(ranks: Sequence[Progress]) -> dict[str, int]:
    """Peak bytes by group of categories of the fullest rank, in stacking order."""
    return dict(_groups(max(ranks, key=_peak_bytes))) if ranks else {}


def legend(groups: Mapping[str, int | None]) -> Columns:
    """Colours of `groups`, with their bytes if given."""
    entries = [
        Text.assemble((FULL, style_of(group)), f" {palette.SHORT_NAMES[group]} {format_bytes(size) if size else ''}")
        for group, size in groups.items()
    ]
    return Columns(entries, padding=(0, 2, 0, 0))


def _table(ranks: Sequence[Progress]) -> Table:
    on_gpu = any(rank.capacity_bytes for rank in ranks)
    scale = max((max(rank.capacity_bytes or 0, _peak_bytes(rank)) for rank in ranks), default=0) or 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    table.add_column("GPU" if on_gpu else "rank", overflow="fold")
    table.add_column("peak by category", ratio=1)
    table.add_column("", justify="right", overflow="fold")
    table.add_column("now" if on_gpu else "process", justify="right", overflow="fold")
    for rank, name in zip(ranks, _names(ranks), strict=True):
        table.add_row(
            Text(plain(name)),
            _Bar(rank, scale),
            Text(_figures(rank)),
            "" if rank.memory_bytes is None else format_bytes(rank.memory_bytes),
        )
    return table


@dataclass(frozen=True)
class _Bar:
    """A rank's peak by category, then the device's free memory, as wide as the column."""

    rank: Progress
    scale: int
    """Bytes of a full bar."""

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        bar = stack(_groups(self.rank), self.scale, room)
        if self.rank.capacity_bytes:
            bar.append(_ROOM_LEFT * (columns_of(self.rank.capacity_bytes, self.scale, room) - len(bar)), "dim")
        yield bar

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_SHORTEST_BAR, options.max_width), options.max_width)


def _names(ranks: Sequence[Progress]) -> list[str]:
    """Name ranks by GPU index if there are GPUs (with the node's name if there are several nodes), else by rank."""
    several = len({rank.hostname for rank in ranks}) > 1
    return [
        f"{f'{rank.hostname} ' if several else ''}{rank.rank if rank.capacity_bytes is None else rank.local_rank}"
        for rank in ranks
    ]


def _figures(rank: Progress) -> str:
    if not rank.peak_by_category:
        return describe([rank]) if rank.phase != "compile" else rank.phase
    of = f" of {format_bytes(rank.capacity_bytes)}" if rank.capacity_bytes else ""
    return f"{format_bytes(_peak_bytes(rank))}{of}"


def _peak_bytes(rank: Progress) -> int:
    return sum(rank.peak_by_category.values())


def _groups(rank: Progress) -> list[tuple[str, int]]:
    """Peak bytes by group of categories, in stacking order."""
    sizes = dict.fromkeys(palette.CATEGORY_COLOURS, 0)
    for category, size in rank.peak_by_category.items():
        sizes[palette.GROUP_OF.get(category, "unattributed")] += size
    return [(group, size) for group, size in sizes.items() if size > 0]
