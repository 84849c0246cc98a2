"""The table of step times of two runs: what each trial's test is about, and whether it could have said more."""

from collections.abc import Iterator, Sequence

from zerobench.common.units import counted
from zerobench.report.figures.compare.comparison import Comparison
from zerobench.report.figures.compare.speed import SpeedChange
from zerobench.report.figures.compare.stats import SIGNIFICANCE, Change, repeats_needed
from zerobench.report.figures.notes import listed
from zerobench.report.figures.stats import median
from zerobench.report.tables.model import Column, in_unit
from zerobench.report.tables.part import Listing, Part, few, first
from zerobench.report.words.column_units import MISSING, Unit, show_percent, time_unit

_Row = tuple[str, SpeedChange]
"""The label of a trial that both runs timed, and its times."""


def speed_parts(comparison: Comparison) -> Iterator[Part]:
    """The step times of both runs, and losses and gradients that speak against comparing them."""
    rows = [(same.label, same.speed) for same in comparison.same if same.speed is not None]
    if rows:
        yield _times(rows, [*_other_steps(comparison)])
    for what, far in (
        ("losses", {same.label: same.losses_apart for same in comparison.same}),
        ("gradient norms", {same.label: same.norms_apart for same in comparison.same}),
    ):
        known = [(label, *distance) for label, distance in far.items() if distance]
        if apart := [f"{label}: by {difference:.2g} (tolerance {most:.2g})" for label, difference, most in known]:
            caption = f"Equal work must have equal {what} up to rounding: NEW and BASE differ in their computation."
            yield Part(f"{what.capitalize()} that differ between the runs", caption, points=few(apart))


def _other_steps(comparison: Comparison) -> Iterator[str]:
    """Trials that were timed in another way, which is no part of the work and yet of its times."""
    for same in comparison.same:
        base, new = same.base[0].spec.steps, same.new[0].spec.steps
        if base != new and same.speed is not None:
            before = f"{counted(base.timed, 'step')} after {counted(base.warmup, 'warm-up step')}"
            yield f"{same.label}: BASE timed {before}, NEW {new.timed} after {new.warmup}"


def _times(rows: Sequence[_Row], warnings: Sequence[str]) -> Part:
    shown, more = first(rows)
    unit = time_unit(value for row in shown for value in (median(row[1].base_s), median(row[1].new_s)))
    caption = (
        "Medians of the repeats' median steps. change: Hodges-Lehmann ratio of NEW to BASE with "
        "its 95% interval, + is slower; p: two-sided Mann-Whitney U test over repeats in "
        "separate processes." + _chance(rows)
    )
    return Part(
        f"Speed, {unit.name} per step",
        caption,
        Listing(_columns(unit), shown),
        points=more,
        warnings=[*_warnings(rows), *few(warnings)],
    )


def _chance(rows: Sequence[_Row]) -> str:
    """Number of significant results to expect by chance of many tests."""
    tested = sum(row[1].can_be_judged for row in rows)
    return "" if tested < 2 else f" Expected false positives among {tested} trials: {tested * SIGNIFICANCE:.1f}."


def _columns(unit: Unit) -> list[Column[_Row]]:
    return [
        Column("trial", lambda row: row[0], narrow="trial", is_text=True),
        Column("tested", lambda row: _tested(row[1]), narrow="tested", is_text=True),
        Column("BASE", in_unit(unit, lambda row: median(row[1].base_s)), narrow="BASE"),
        Column("NEW", in_unit(unit, lambda row: median(row[1].new_s)), narrow="NEW"),
        Column("change", lambda row: show_percent(row[1].change.ratio - 1, signed=True), narrow="change"),
        Column("95% interval", lambda row: _interval(row[1].change), narrow="95%"),
        Column("p", lambda row: f"{row[1].change.p_value:.2g}", narrow="p"),
        Column("verdict", lambda row: row[1].verdict, narrow="verdict", is_text=True),
    ]


def _tested(speed: SpeedChange) -> str:
    """`4+4`, or `5+5 steps` where they are steps of one process."""
    return f"{len(speed.base_s)}+{len(speed.new_s)}" + ("" if speed.over_processes else " steps")


def _interval(change: Change) -> str:
    if change.interval is None:
        return MISSING
    low, high = (100 * (ratio - 1) for ratio in change.interval)
    return f"{low:+.1f}..{high:+.1f}%"


def _warnings(rows: Sequence[_Row]) -> Iterator[str]:
    """Meaning of the verdicts that are none."""
    meanings = {
        "steps only": (
            "one repeat per run, so the test compares the steps of two single processes, which are not independent"
        ),
        "too few": f"p < {SIGNIFICANCE} is impossible with so few repeats",
    }
    for verdict, words in meanings.items():
        if names := [row[0] for row in rows if row[1].verdict == verdict]:
            yield f"{verdict} ({listed(names)}): {words}; run both with --repeats {repeats_needed()} or more"
    yield from few([f"void: {row[0]}: {row[1].void}" for row in rows if row[1].void is not None])
