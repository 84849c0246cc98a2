"""Peaks of two runs side by side: for each trial a bar of BASE and one of NEW, by category."""

from collections.abc import Iterator, Sequence
from functools import partial

from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.config.trial.trial import Evidence
from zerobench.report.charts.bar_marks import chart, cut
from zerobench.report.charts.bars import bars_table, cut_sentence
from zerobench.report.charts.render import drawing
from zerobench.report.charts.shown import MOST_ROWS, evidence_sentence
from zerobench.report.charts.stack import Bar, Part, parts_of
from zerobench.report.figures.compare.comparison import Comparison
from zerobench.report.figures.compare.memory import MemoryChange, RepeatedPeak, place_name
from zerobench.report.figures.compare.sides import Where
from zerobench.report.tables.figure import Figure
from zerobench.report.words.column_units import byte_axis

_WHERE: Sequence[Where] = [
    (place.value, step) for place in (Place.DEVICE, Place.HOST) for step in (StepKind.STEADY, StepKind.FIRST)
]
_MOST_PAIRS = MOST_ROWS // 2


def figures(comparison: Comparison) -> Iterator[Figure]:
    """A steady step's device memory; that of start-up and of the host where the runs differ in it."""
    for where in _WHERE:
        peaks = [peak for peak in comparison.peaks if peak.where == where and all(map(_parts, _sides(peak)))]
        if peaks and (where == _WHERE[0] or not all(peak.is_equal for peak in peaks)):
            yield _figure(where, sorted(peaks, key=lambda peak: -peak.growth))


def _figure(where: Where, peaks: Sequence[MemoryChange]) -> Figure:
    shown = peaks[:_MOST_PAIRS]
    bars = cut([bar for peak in shown for bar in _pair(peak)], 0)
    unit = byte_axis(bar.whole for bar in bars)
    name = place_name(where)
    key = f"memory-{name.replace(' ', '-')}"
    title = f"Peak {name} memory by category, BASE and NEW"
    counted = "" if len(shown) == len(peaks) else f" {len(shown)} of {len(peaks):,} trials."
    evidence = evidence_sentence([peak.base.middle for peak in shown])
    caption = f"Largest rank, median repeat. Largest growth first.{counted}{cut_sentence(bars)}{evidence}"
    plot = partial(chart, bars, [], unit, f"peak {name} memory ({unit.name})", [])
    return Figure(key, title, caption, drawing(plot, key, title), bars_table(bars, unit))


def _pair(peak: MemoryChange) -> Iterator[Bar]:
    for side, held in zip(("BASE", "NEW"), _sides(peak), strict=True):
        is_measured = held.middle.spec.evidence is Evidence.MEASURED
        yield Bar(f"{peak.label}: {side}", held.instant, _parts(held), is_measured)


def _sides(peak: MemoryChange) -> tuple[RepeatedPeak, RepeatedPeak]:
    return peak.base, peak.new


def _parts(held: RepeatedPeak) -> list[Part]:
    """All but the rest of the process, which is the machine's and not the trial's."""
    return parts_of(held.instant, {Category.REST_OF_PROCESS})
