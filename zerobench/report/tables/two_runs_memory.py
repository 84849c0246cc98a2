"""Tables of what two runs hold at their peaks: totals, then each category that differs, to the byte, and why."""

from collections.abc import Iterator, Sequence

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.report.figures.compare.comparison import Comparison
from zerobench.report.figures.compare.memory import MemoryChange, where_name
from zerobench.report.figures.memory_difference import CategoryDifference
from zerobench.report.tables.causes import causes
from zerobench.report.tables.model import Column, of_part
from zerobench.report.tables.part import MOST_NAMED, Listing, Part, first
from zerobench.report.words.column_units import MISSING, Unit, byte_unit, show_percent

_MOST_CATEGORIES = 2 * MOST_NAMED


_CategoryRow = tuple[MemoryChange, CategoryDifference]
"""One category that differs at one peak."""


def memory_parts(comparison: Comparison) -> Iterator[Part]:
    """The peaks of both runs, and where they differ."""
    rows = comparison.peaks
    if not rows:
        return
    yield _totals(rows)
    every = ((row, difference) for row in rows for difference in row.differences)
    if differing := [parts for parts in every if parts[1].category is not Category.TOTAL]:
        yield _categories(differing, causes(comparison, rows))


_PLACES = {
    "device": "tensors",
    "reserved": "by the allocator",
    "used": "by NVML, less what was in use before",
    "resident": "the process of a CPU rank",
}
"""What the peaks of a place are of."""


def _totals(rows: Sequence[MemoryChange]) -> Part:
    listed = [row for row in rows if not row.is_equal or row.where == (Place.DEVICE.value, StepKind.STEADY)]
    shown, more = first(sorted(listed, key=lambda row: -row.growth))
    unit = byte_unit(size for row in shown for size in (row.base.largest_bytes, row.new.largest_bytes))
    equal = sum(row.is_equal for row in rows)
    places = dict.fromkeys(where_name(row.where).partition(" ")[0] for row in shown)
    legend = "; ".join(f"{place}: {_PLACES[place]}" for place in places if place in _PLACES)
    caption = (
        f"Largest rank, median repeat{f'. {legend}' if legend else ''}. {equal} of {len(rows)} peaks identical in "
        "every category. Largest growth first."
    )
    title = f"Memory at the peak of a steady step and of start-up, {unit.name}"
    return Part(title, caption, Listing(_total_columns(unit), shown), points=more, warnings=_spreads(shown))


def _total_columns(unit: Unit) -> list[Column[MemoryChange]]:
    def more(row: MemoryChange) -> str:
        return ("+" if row.more_bytes > 0 else "") + unit.show(row.more_bytes)

    return [
        *_WHERE,
        Column("BASE", lambda row: unit.show(row.base.instant.total_bytes), narrow="BASE"),
        Column("NEW", lambda row: unit.show(row.new.instant.total_bytes), narrow="NEW"),
        Column("difference", more, narrow="diff"),
        Column("%", _percent, narrow="%"),
        Column(
            "largest part",
            of_part(lambda row: row.largest, lambda category: category.words),
            narrow="largest part",
            is_text=True,
        ),
    ]


_WHERE: Sequence[Column[MemoryChange]] = (
    Column("trial", lambda row: row.label, narrow="trial", is_text=True),
    Column("peak of", lambda row: where_name(row.where), narrow="peak of", is_text=True),
)


def _percent(change: MemoryChange) -> str:
    if change.fraction is None:
        return MISSING
    return "0" if change.more_bytes == 0 else show_percent(change.fraction, 2, signed=True).removesuffix("%")


def _spreads(rows: Sequence[MemoryChange]) -> list[str]:
    """A sentence for each peak that repeats of the same software do not agree on."""
    return [
        f"{row.label}: {where_name(row.where)}: not deterministic: repeats of BASE differ by up to "
        f"{format_bytes(row.base.spread_bytes)}, of NEW by up to {format_bytes(row.new.spread_bytes)}"
        + ("; the runs differ by no more" if row.is_within_spread else "")
        for row in rows
        if row.base.spread_bytes or row.new.spread_bytes
    ]


def _categories(rows: Sequence[_CategoryRow], why: Sequence[str]) -> Part:
    shown, more = first(rows, _MOST_CATEGORIES)
    unit = byte_unit(size for _, difference in shown for size in (difference.a_bytes, difference.b_bytes))
    columns: list[Column[_CategoryRow]] = [
        *(column.over(lambda row: row[0]) for column in _WHERE),
        Column("category", lambda row: row[1].category.words, narrow="category", is_text=True),
        Column("BASE", lambda row: unit.show(row[1].a_bytes), unit.name),
        Column("NEW", lambda row: unit.show(row[1].b_bytes), unit.name),
        Column("difference", lambda row: f"{row[1].more_bytes:+,}", "bytes", narrow="bytes"),
    ]
    caption = "NEW minus BASE at the two peaks; lines add up to a peak's difference."
    return Part("Memory that differs, by category", caption, Listing(columns, shown), points=[*more, *why])
