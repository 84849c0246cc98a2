"""The document of `zerobench compare`: environments of two runs, how their trials ended, and the gate's result."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from zerobench.common.units import counted, format_bytes
from zerobench.common.vocabulary import Category, Place, Status, StepKind
from zerobench.report.figures.compare.comparison import Comparison, SharedTrial, ended
from zerobench.report.figures.compare.environment import Fact, hardware_warnings
from zerobench.report.figures.compare.memory import MemoryChange, place_name
from zerobench.report.figures.memory_difference import CategoryDifference
from zerobench.report.figures.notes import listed
from zerobench.report.tables.causes import causes
from zerobench.report.tables.gate import (
    Verdict,
    changed_configuration,
    gate_sentence,
    headline,
    outcome,
    why,
    worst_of,
)
from zerobench.report.tables.model import Column, of_part
from zerobench.report.tables.part import MOST_NAMED, Listing, Part, few, first
from zerobench.report.tables.two_runs_speed import speed_parts
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
"""Names of the peaks of each place."""


def _totals(rows: Sequence[MemoryChange]) -> Part:
    listed = [row for row in rows if not row.is_equal or row.where == (Place.DEVICE.value, StepKind.STEADY)]
    shown, more = first(sorted(listed, key=lambda row: -row.growth))
    unit = byte_unit(size for row in shown for size in (row.base.largest_bytes, row.new.largest_bytes))
    equal = sum(row.is_equal for row in rows)
    places = dict.fromkeys(place_name(row.where).partition(" ")[0] for row in shown)
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
    Column("peak of", lambda row: place_name(row.where), narrow="peak of", is_text=True),
)


def _percent(change: MemoryChange) -> str:
    if change.fraction is None:
        return MISSING
    return "0" if change.more_bytes == 0 else show_percent(change.fraction, 2, signed=True).removesuffix("%")


def _spreads(rows: Sequence[MemoryChange]) -> list[str]:
    """A sentence for each peak that repeats of the same software do not agree on."""
    return [
        f"{row.label}: {place_name(row.where)}: not deterministic: repeats of BASE differ by up to "
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


_ALIKE = ("torch", "deepspeed", "transformers", "python", "CUDA of torch", "driver", "GPUs", "processor", "host")
"""Facts that are reported where they are the same in both runs."""


TITLE = "Memory and speed, before and after"
SUMMARY = "Summary"


def comparison_parts(comparison: Comparison, *, details: bool = True) -> Iterator[Part]:
    """All of it but the gate; without `details` less the categories of each peak."""
    yield _environment(comparison)
    yield from islice(memory_parts(comparison), None if details else 1)
    yield from speed_parts(comparison)
    yield from _outcomes(comparison)


def document_parts(comparison: Comparison, verdicts: Sequence[Verdict]) -> list[Part]:
    """All of it for a file: the answer, which is last in the terminal, where the eye is, comes first."""
    answer = answer_part(comparison, verdicts)
    return [replace(answer, text=(), points=[*map(str, answer.text), *answer.points]), *comparison_parts(comparison)]


def answer_part(comparison: Comparison, verdicts: Sequence[Verdict]) -> Part:
    """Answer of the comparison: a gate's verdict with what changed and why, or without a gate the worst of it."""
    if not verdicts:
        return Part(SUMMARY, text=headline(comparison, verdicts))
    return gate_part(verdicts, changed_configuration(comparison), why(comparison))


def _environment(comparison: Comparison) -> Part:
    differing = [fact for fact in comparison.facts if fact.differs]
    columns: list[Column[Fact]] = [
        Column("difference", lambda fact: fact.name, narrow="difference", is_text=True),
        Column("BASE", lambda fact: fact.base or MISSING, narrow="BASE", is_text=True),
        Column("NEW", lambda fact: fact.new or MISSING, narrow="NEW", is_text=True),
    ]
    return Part(
        "BASE and NEW",
        f"BASE: run {comparison.base.run.run_id}. NEW: run {comparison.new.run.run_id}. {_counts(comparison)}",
        Listing(columns, differing) if differing else None,
        points=[*_alike(comparison.facts), *comparison.shared],
        warnings=hardware_warnings(comparison.facts),
    )


def _counts(comparison: Comparison) -> str:
    skipped = sum(ended(pair.base) == ended(pair.new) == Status.SKIPPED.value for pair in comparison.same)
    same = len(comparison.same) - skipped
    others = {"skipped in both": skipped, "in BASE only": len(comparison.only_base)}
    others |= {"in NEW only": len(comparison.only_new)}
    counts = [f"{counted(same, 'trial')} in both", *(f"{count} {where}" for where, count in others.items() if count)]
    return f"{', '.join(counts)}."


def _alike(facts: Sequence[Fact]) -> list[str]:
    known = {fact.name: fact.base for fact in facts if not fact.differs and fact.base is not None}
    texts = [f"{name} {known[name]}" for name in _ALIKE if name in known]
    return [f"same in both: {', '.join(texts)}"] if texts else []


def _outcomes(comparison: Comparison) -> Iterator[Part]:
    changed = [same for same in comparison.same if ended(same.base) != ended(same.new)]
    columns: list[Column[SharedTrial]] = [
        Column("trial", lambda same: same.label, narrow="trial", is_text=True),
        Column("BASE", lambda same: ended(same.base), narrow="BASE", is_text=True),
        Column("NEW", lambda same: ended(same.new), narrow="NEW", is_text=True),
        Column("why", _growth_causes, narrow="why", is_text=True),
    ]
    alone = {"BASE": comparison.only_base, "NEW": comparison.only_new}
    lines = [f"in {side} only: {listed(names, MOST_NAMED)}" for side, names in alone.items() if names]
    warnings = [f"{same.label}, {outcome(same)}" for same in changed if same.stopped_completing]
    if changed or lines:
        shown, more = first(changed)
        caption = "Trials with different outcomes, or in one run only."
        table = Listing(columns, shown) if changed else None
        yield Part("Outcomes", caption, table, points=lines + more, warnings=warnings)


def _growth_causes(same: SharedTrial) -> str:
    reasons = (repeat.reason for repeat in (*same.new, *same.base) if not repeat.completed)
    return next(filter(None, reasons), MISSING)


def gate_part(verdicts: Sequence[Verdict], changed: Sequence[str] = (), reasons: Sequence[str] = ()) -> Part:
    """Result of each limit; the worst failure stands once, in the first line, what `changed` in the second."""
    worst = worst_of(verdicts)
    worst_line = worst.failures[0] if worst else None
    lines, warnings = [gate_sentence(verdicts), *changed, *reasons], []
    for verdict in verdicts:
        name, count = verdict.limit.written, verdict.num_judged
        result = "FAILED" if not verdict.passed else "passed" if count else "CANNOT FIRE"
        lines.append(f"{name}: {result}, {counted(count, 'trial')} judged")
        warnings += few([line for line in verdict.failures if line != worst_line])
        warnings += [f"not judged by {name}: {line}" for line in few(verdict.not_judged)]
    return Part("Gate", points=lines, warnings=list(dict.fromkeys(warnings)))
