"""Memory by category as stacked bars, a row a trial: Figure 1 of the ZeRO paper (arXiv 1910.02054) with real numbers.

A part is a category; its colour is that of its group, so the three optimizer states stand apart within one colour.
"""

from collections.abc import Sequence
from functools import partial

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, Status
from zerobench.report.charts.bar_marks import chart as bar_chart
from zerobench.report.charts.bar_marks import cut
from zerobench.report.charts.render import drawing
from zerobench.report.charts.shown import ending, most_telling
from zerobench.report.charts.stack import ORDER, Bar, TrialBar, stacked
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words.column_units import Unit, byte_axis

_CAPACITY_SEEN = 0.25
"""The capacity is drawn where the largest bar reaches this share of it; further off, it would flatten the bars."""


def device_figure(runs: RunFigures) -> Figure | None:
    """Device memory by category at the steady step's peak; None where no trial completed with a ledger."""
    known = stacked(runs.figures, Place.DEVICE)
    trials, bars = _chosen(known)
    if not bars:
        return None
    # These ended for want of device memory, at a need that nobody knows.
    out = [t for t in runs.figures if t.status is Status.OUT_OF_DEVICE_MEMORY and not t.is_whole]
    failed = [trial.marked_label for trial in out[:5]]
    capacity = capacities(bars)
    is_seen = bool(capacity) and max(bar.reach for bar in bars) >= _CAPACITY_SEEN * capacity[0]
    bars = cut(bars, capacity[0] if is_seen else 0)
    tail = " Pale tail: start-up, allocator slack, CUDA context and NCCL." * any(bar.reach > bar.drawn for bar in bars)
    caption = f"Steady-step peak of the largest rank.{tail}" + _capacity_sentence(capacity, is_seen=is_seen)
    caption += cut_sentence(bars) + ending(trials, len(bars), len(known))
    words = ("memory-per-gpu", "Peak device memory by category", "peak memory per device", caption)
    return _figure(bars, *words, failed, capacity if is_seen else [])


def host_figure(runs: RunFigures) -> Figure | None:
    """Host memory by category, of runs that offload; None elsewhere.

    The rest of the process (interpreter, libraries, malloc's own) is left out: it is the same for every stage, and no
    prediction has it.
    """
    offloading = [trial for trial in runs.figures if trial.offloads()]
    known = [each for each in stacked(offloading, Place.HOST, {Category.REST_OF_PROCESS}) if each[1].whole > 0]
    if not known:
        return None
    trials, chosen = _chosen(known)
    bars = cut(chosen, 0)
    caption = "Steady-step peak of the largest rank, without interpreter, libraries and malloc cache."
    caption += cut_sentence(bars) + ending(trials, len(bars), len(known))
    title = "Host memory of offloaded states, by category"
    return _figure(bars, "memory-of-host", title, "host memory per rank", caption)


def _figure(
    bars: Sequence[Bar],
    key: str,
    title: str,
    axis: str,
    caption: str,
    failed: Sequence[str] = (),
    capacity: Sequence[int] = (),
) -> Figure:
    unit = byte_axis(min(bar.whole, bar.reach) for bar in bars)
    chart = partial(bar_chart, bars, failed, unit, f"{axis} ({unit.name})", capacity)
    return Figure(key, title, caption, drawing(chart, key, title), bars_table(bars, unit))


def capacities(bars: Sequence[Bar]) -> list[int]:
    """The capacities of the devices that the bars are of, each once."""
    return sorted({bar.capacity_bytes for bar in bars if bar.capacity_bytes is not None})


def _chosen(known: Sequence[TrialBar]) -> tuple[list[TrialFigures], list[Bar]]:
    """The trials that are drawn, and their bars."""
    bars = {id(trial): bar for trial, bar in known}
    trials = most_telling([trial for trial, _ in known], lambda trial: bars[id(trial)].whole)
    return trials, [bars[id(trial)] for trial in trials]


def _capacity_sentence(capacity: Sequence[int], *, is_seen: bool) -> str:
    sizes = " or ".join(map(format_bytes, capacity))
    if is_seen:
        return f" Red line: device capacity, {sizes}."
    return f" Device capacity: {sizes}, beyond the chart's range." if capacity else ""


def cut_sentence(bars: Sequence[Bar]) -> str:
    """Sentence of a caption that explains a bar that is cut off."""
    return " //: bar truncated, value at its end." if any(bar.is_cut for bar in bars) else ""


def bars_table(bars: Sequence[Bar], unit: Unit) -> Columns:
    """A row for each bar that is drawn, a column for each category that any of them has."""
    parts = sorted((part for bar in bars for part in bar.parts), key=lambda part: ORDER.index(part.group))
    categories = dict.fromkeys(part.category for part in parts)
    names = {category: f"{category.replace('_', ' ')} ({unit.name})" for category in categories}
    sizes = [{part.category: part.num_bytes for part in bar.parts} for bar in bars]
    rows = [
        {
            "trial": bar.name,
            f"peak ({unit.name})": unit.show(bar.whole),
            "largest rank": str(bar.instant.rank),
            "phase": bar.instant.phase.value,
            **{name: unit.show(of_bar.get(category)) for category, name in names.items()},
        }
        for bar, of_bar in zip(bars, sizes, strict=True)
    ]
    return columns_of_named(rows)
