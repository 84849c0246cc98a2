"""Spread of a trial's ranks, the odd one named; never their sum or mean.

A server is no rank among others, and is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import altair as alt

from zerobench.common.units import counted, format_bytes
from zerobench.config.derived.roles import Role
from zerobench.report.charts.bar_rows import BarRows
from zerobench.report.charts.marks import SIDES
from zerobench.report.charts.render import Specification, drawing, layered, mark, reach
from zerobench.report.charts.shown import MOST_ROWS, doubt_sentence, whole
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.stats import RankSpread, spread_over_ranks
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words.column_units import Unit, byte_axis

_KEY = "spread-over-ranks"

Spread = tuple[TrialFigures, RankSpread]


def figure(runs: RunFigures) -> Figure | None:
    """Each rank's device peak beside the median rank's; None where no trial had two ranks."""
    measured = spreads(runs)
    if not measured:
        return None
    title = "Spread of device peaks over ranks"
    uneven = [(trial, spread) for trial, spread in measured if spread.odd_rank is not None]
    if not uneven:
        caption = f"Equal device peaks on all ranks in {counted(len(measured), 'trial')}."
        return Figure(_KEY, title, caption, None, _table(measured, byte_axis(spread.median for _, spread in measured)))
    widest = {id(trial) for trial, _ in sorted(uneven, key=lambda pair: -_reach(pair[1]))[:MOST_ROWS]}
    shown = [(trial, spread) for trial, spread in uneven if id(trial) in widest]
    unit = byte_axis(_reach(spread) for _, spread in shown)
    even = len(measured) - len(uneven)
    caption = "Steady-step peak of each rank minus the median; outlier rank labelled. "
    caption += f"Equal on all ranks in {counted(even, 'more trial')}." if even else ""
    if len(uneven) > len(shown):
        caption += f" {len(shown)} of {len(uneven):,} uneven trials, those with the widest spread."
    caption += doubt_sentence([trial for trial, _ in shown])
    table = _table(shown, byte_axis(spread.maximum for _, spread in shown))
    return Figure(_KEY, title, caption.strip(), drawing(partial(_chart, shown, unit), _KEY, title), table)


def spreads(runs: RunFigures) -> list[Spread]:
    """The spread of the steady device peak of each completed trial with two ranks or more."""
    known = ((trial, _peaks(trial)) for trial in whole(runs.figures))
    pairs = ((trial, spread_over_ranks(peaks)) for trial, peaks in known if len(peaks) > 1)
    return [(trial, spread) for trial, spread in pairs if spread is not None]


def _peaks(trial: TrialFigures) -> dict[int, int]:
    """By rank, servers left out."""
    ranks = (rank for rank in trial.ranks if rank.role != Role.SERVER)
    return {rank.rank: rank.device_peak_bytes for rank in ranks if rank.device_peak_bytes is not None}


def _reach(spread: RankSpread) -> float:
    return max(spread.maximum - spread.median, spread.median - spread.minimum)


def _chart(shown: Sequence[Spread], unit: Unit, *, width: float) -> Specification:
    names = [trial.marked_label for trial, _ in shown]
    rows = BarRows.of(width, names)
    spans = [
        {
            "name": name,
            "start": unit.of(spread.minimum - spread.median),
            "end": unit.of(spread.maximum - spread.median),
            "description": f"{name}: from {format_bytes(spread.minimum)} to {format_bytes(spread.maximum)},"
            f" median {format_bytes(spread.median)}",
        }
        for name, (_, spread) in zip(names, shown, strict=True)
    ]
    low = min(unit.of(spread.minimum - spread.median) for _, spread in shown)
    high = max(unit.of(spread.maximum - spread.median) for _, spread in shown)
    room = (high - low) * 0.12
    scale = reach(low - room, high + room * 1.6)
    x = alt.X("start:Q", title=f"device peak minus the median ({unit.name})", scale=scale)
    points = [row for trial, spread in shown for row in _points(trial, spread, unit)]
    place = {"x": x, "y": rows.y}
    told = {**place, "description": "description:N"}
    dot, fill = {"size": 60, "strokeWidth": 1.4, "opacity": 1, "stroke": "var(--ink)"}, alt.Fill("fill:N", scale=None)
    layers = [
        mark("bar", spans, {**told, "x2": "end:Q"}, height=4, color="var(--muted)", opacity=0.6),
        mark("rule", [{"start": 0.0}], {"x": x}, color="var(--ink)", strokeWidth=1, aria=False),
        mark("point", points, {**told, "fill": fill}, **dot),
    ]
    for align, dx, is_right in SIDES:
        odd = [row for row in points if row.text and row.is_right == is_right]
        layers.append(mark("text", odd, {**place, "text": "text:N"}, align=align, dx=dx, fontSize=11))
    return layered([*layers, *rows.lines_above()], rows.width, rows.height)


_MOST_RANKS = 64
"""Ranks of a trial that have a point each; of more, the odd one, the least and the most."""


@dataclass(frozen=True)
class _Rank:
    """A rank as a mark reads it."""

    name: str
    start: float
    fill: str
    text: str
    is_right: bool
    description: str


def _points(trial: TrialFigures, spread: RankSpread, unit: Unit) -> list[_Rank]:
    peaks, name = _peaks(trial), trial.marked_label
    if len(peaks) > _MOST_RANKS:
        ends = {spread.minimum, spread.maximum}
        told_apart = {rank: size for rank, size in peaks.items() if rank == spread.odd_rank or size in ends}
        first = {size: rank for rank, size in reversed(told_apart.items())}
        is_few = len(told_apart) <= _MOST_RANKS
        peaks = {rank: size for rank, size in told_apart.items() if is_few or first[size] == rank}
    return [
        _Rank(
            name,
            unit.of(size - spread.median),
            fill="var(--limit)" if rank == spread.odd_rank else "var(--paper)",
            text=f"rank {rank}" if rank == spread.odd_rank else "",
            is_right=size >= spread.median,
            description=f"{name}, rank {rank}: {format_bytes(size)}{', outlier' if rank == spread.odd_rank else ''}",
        )
        for rank, size in peaks.items()
    ]


def _table(shown: Sequence[Spread], unit: Unit) -> Columns:
    less = byte_axis(_reach(spread) for _, spread in shown)
    return columns_of_named(
        [
            {
                "trial": trial.marked_label,
                f"minimum ({unit.name})": unit.show(spread.minimum),
                f"median ({unit.name})": unit.show(spread.median),
                f"maximum ({unit.name})": unit.show(spread.maximum),
                "outlier rank": "-" if spread.odd_rank is None else str(spread.odd_rank),
                f"outlier minus median ({less.name})": less.show(
                    None if spread.odd_value is None else spread.odd_value - spread.median
                ),
            }
            for trial, spread in shown
        ]
    )
