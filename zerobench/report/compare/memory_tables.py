"""Tables of what two runs hold at their peaks: totals, then each category that differs, to the byte, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.records import Category, Place, StepKind
from zerobench.report.column_units import MISSING, Unit, byte_unit, show_percent
from zerobench.report.compare.causes import Peak, causes
from zerobench.report.compare.comparison import Comparison
from zerobench.report.compare.memory import MemoryChange, where_name
from zerobench.report.compare.part import MOST_NAMED, Part, first
from zerobench.report.grids import Grid
from zerobench.report.memory_difference import CategoryDifference
from zerobench.report.terminal.layout import Column
from zerobench.units import format_bytes

_MOST_CATEGORIES = 2 * MOST_NAMED


@dataclass(frozen=True)
class _CategoryRow:
    """One category that differs at one peak."""

    row: Peak
    difference: CategoryDifference


def memory_parts(comparison: Comparison, width: int) -> Iterator[Part]:
    """The peaks of both runs, and where they differ."""
    rows = [Peak(same.label, change) for same in comparison.same for change in same.memory]
    if not rows:
        return
    yield _totals(rows, width)
    if differing := [_CategoryRow(row, one) for row in rows for one in _by_category(row.change)]:
        yield _categories(differing, causes(comparison, rows), width)


def _totals(rows: Sequence[Peak], width: int) -> Part:
    listed = [
        row for row in rows if not row.change.is_equal or row.change.where == (Place.DEVICE.value, StepKind.STEADY)
    ]
    shown, more = first(sorted(listed, key=_by_growth))
    unit = byte_unit(size for row in shown for size in (row.change.base.largest_bytes, row.change.new.largest_bytes))
    equal = sum(row.change.is_equal for row in rows)
    caption = (
        "The rank with the largest peak; of several repeats the middle one. device: tensors; reserved: what the "
        "allocator holds; used: what NVML saw, less what was there before; resident: the process of a CPU rank. "
        f"{equal} of {len(rows)} peaks are equal to the byte, in every category. The largest growth first."
    )
    title = f"Memory at the peak of a steady step and of start-up, {unit.name}"
    return Part(title, caption, Grid.of(_total_columns(unit), shown, width), more, _spreads(shown))


def _by_growth(row: Peak) -> float:
    fraction = row.change.fraction
    return -(row.change.more_bytes if fraction is None else fraction)


def _total_columns(unit: Unit) -> list[Column[Peak]]:
    return [
        Column("trial", "trial", lambda row: row.label, is_text=True),
        Column("peak of", "peak of", lambda row: where_name(row.change.where), is_text=True),
        Column("BASE", "BASE", lambda row: unit.show(row.change.base.instant.total_bytes)),
        Column("NEW", "NEW", lambda row: unit.show(row.change.new.instant.total_bytes)),
        Column("difference", "diff", lambda row: _signed(unit, row.change.more_bytes)),
        Column("%", "%", lambda row: _percent(row.change)),
        Column("most of it", "most of it", _largest, is_text=True),
    ]


def _signed(unit: Unit, nbytes: int) -> str:
    return ("+" if nbytes > 0 else "") + unit.show(nbytes)


def _percent(change: MemoryChange) -> str:
    if change.fraction is None:
        return MISSING
    return "0" if change.more_bytes == 0 else show_percent(change.fraction, 2, signed=True).removesuffix("%")


def _largest(row: Peak) -> str:
    found = _by_category(row.change)
    return found[0].category.replace("_", " ") if found else MISSING


def _by_category(change: MemoryChange) -> list[CategoryDifference]:
    """The categories that differ; none where only the totals are known, which the table of totals has."""
    return [one for one in change.differences if one.category is not Category.TOTAL]


def _spreads(rows: Sequence[Peak]) -> list[str]:
    """A sentence for each peak that repeats of the same software do not agree on."""
    return [
        f"{row.label}: {where_name(row.change.where)}: not deterministic: repeats of BASE differ by up to "
        f"{format_bytes(row.change.base.spread_bytes)}, of NEW by up to {format_bytes(row.change.new.spread_bytes)}"
        + ("; the difference of the runs is no larger" if row.change.is_within_spread else "")
        for row in rows
        if row.change.base.spread_bytes or row.change.new.spread_bytes
    ]


def _categories(rows: Sequence[_CategoryRow], why: Sequence[str], width: int) -> Part:
    shown, more = first(rows, _MOST_CATEGORIES)
    sizes = (size for row in shown for size in (row.difference.a_bytes, row.difference.b_bytes))
    unit = byte_unit(sizes)
    columns = [
        Column[_CategoryRow]("trial", "trial", lambda one: one.row.label, is_text=True),
        Column[_CategoryRow]("peak of", "peak of", lambda one: where_name(one.row.change.where), is_text=True),
        Column[_CategoryRow]("category", "category", lambda one: one.difference.category.replace("_", " "), True),
        Column[_CategoryRow](f"BASE, {unit.name}", None, lambda one: unit.show(one.difference.a_bytes)),
        Column[_CategoryRow](f"NEW, {unit.name}", None, lambda one: unit.show(one.difference.b_bytes)),
        Column[_CategoryRow]("difference, bytes", "bytes", lambda one: f"{one.difference.more_bytes:+,}"),
    ]
    caption = "NEW minus BASE, exact, at the instants of the two peaks; the lines of a peak add up to its difference."
    return Part("Memory that differs, by category", caption, Grid.of(columns, shown, width), [*more, *why])
