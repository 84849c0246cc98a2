"""What `zerobench validate` shows: how far predictions are off, and by name those that would have cost a run.

The same parts, with the same cells, go to the terminal and into a Markdown file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from zerobench.records import Place
from zerobench.report.column_units import MISSING
from zerobench.report.grids import Grid, show_error
from zerobench.report.labels import shared_lines
from zerobench.report.markdown.text import bullets as as_points
from zerobench.report.markdown.text import paragraph, prose
from zerobench.report.predictions.errors import (
    UNDER_PREDICTION,
    ErrorRow,
    Found,
    Refusal,
    error_rows,
    false_refusals,
    from_nothing,
    has_capacity,
    missed_refusals,
    under_predictions,
)
from zerobench.report.predictions.predicted import Pair
from zerobench.report.predictions.tables import UNFORESEEN, Names, left_out_lines, phase_name
from zerobench.report.terminal.layout import Column, Section, bullets, listed
from zerobench.report.trials import Trial, completed
from zerobench.spec.trial import Evidence
from zerobench.units import format_bytes

_MOST_NAMED = 20
"""Cells of one kind that are named; the rest are counted, and the table `errors` has them."""


@dataclass(frozen=True)
class Part:
    """A table, or else a list, for the terminal or for a file."""

    title: str
    caption: str
    grid: Grid | None = None
    lines: list[str] = field(default_factory=list)

    def section(self, width: int) -> Section:
        """It for a terminal of `width` columns."""
        grid = bullets(self.lines) if self.grid is None else self.grid.rich(width)
        return Section(self.title, self.caption, grid)

    def markdown(self) -> list[str]:
        """Its lines in Markdown, an empty one last."""
        blocks = [[f"## {prose(self.title)}"], [paragraph(self.caption)], self.grid.markdown() if self.grid else []]
        blocks.append(as_points(self.lines))
        return [line for block in blocks if any(block) for line in (*block, "")]


def as_markdown(title: str, parts: Sequence[Part]) -> str:
    """The parts as a Markdown document."""
    return "\n".join([f"# {prose(title)}", "", *(line for part in parts for line in part.markdown())])


def validation_parts(trials: Sequence[Trial], pairs: Sequence[Pair], names: Names, width: int) -> Iterator[Part]:
    """What was compared, the error table of each world and place, then the mistakes that cost a run."""
    yield _overview(trials, pairs)
    for (world, against, place), rows in groupby(error_rows(pairs), key=attrgetter("evidence", "against", "place")):
        title = f"{world.value} against {against.value}: {place.value} memory"
        yield Part(title[0].upper() + title[1:], _CAPTION, _error_grid(list(rows), names, width))
    if any(pair.cells for pair in pairs):
        yield _under_predictions(pairs, names)
    if pairs:
        yield _refusals(pairs, names)
    if undefined := from_nothing(pairs):
        lines = [f"{_place(one, names)}: {format_bytes(one.cell.predicted_bytes)}" for one in undefined]
        yield Part("Predicted, and nothing of it measured", "No relative error is defined.", lines=_first(lines))
    if unforeseen := _unforeseen(pairs, names):
        yield Part(
            "Not predicted", f"{UNFORESEEN[0].upper()}{UNFORESEEN[1:]}: not in the peaks above.", lines=unforeseen
        )
    if left_out := left_out_lines(pairs, names):
        yield Part("Not compared", "", lines=[line.plain.removeprefix("! ") for line in left_out])


_CAPTION = (
    "Totals of the rank that was predicted. median: of the absolute relative errors, |predicted - measured| / measured."
    " over, under: the error of the worst prediction above, below what was measured. 0: equal to the byte."
)


def _overview(trials: Sequence[Trial], pairs: Sequence[Pair]) -> Part:
    """What the trials have in common, how many there are of each world, and how many of them are compared."""
    lines = shared_lines([trial.spec for trial in trials])
    for world in Evidence:
        asked = [trial for trial in trials if trial.spec.evidence is world]
        compared = [pair for pair in pairs if pair.predicted.spec.evidence is world and pair.cells]
        ran = sum(map(completed, asked))
        if asked and world is Evidence.MEASURED:
            lines.append(f"measured: {len(asked)} trials, {ran} completed")
        elif asked:
            lines.append(f"{world.value}: {len(asked)} trials, {ran} completed, {len(compared)} predictions compared")
    return Part("Predictions beside measurements", "", lines=lines)


def _error_grid(rows: Sequence[ErrorRow], names: Names, width: int) -> Grid:
    """A row for each quantity and phase."""
    columns = [
        Column[ErrorRow]("quantity", "quantity", lambda row: row.quantity.value, is_text=True),
        Column[ErrorRow]("phase", "phase", lambda row: phase_name(row.when) if row.when else "all", is_text=True),
        Column[ErrorRow]("cells", "cells", lambda row: str(row.errors.num_cells)),
        Column[ErrorRow]("median", "median", lambda row: _size(row.errors.median)),
        Column[ErrorRow]("over", "over", lambda row: _worst(row.errors.worst_over)),
        Column[ErrorRow]("under", "under", lambda row: _worst(row.errors.worst_under)),
        Column[ErrorRow]("worst over", None, lambda row: _whose(row.errors.worst_over, names), is_text=True),
        Column[ErrorRow]("worst under", None, lambda row: _whose(row.errors.worst_under, names), is_text=True),
    ]
    return Grid.of(columns, rows, width)


def _size(error: float | None) -> str:
    return MISSING if error is None else show_error(error).removeprefix("+")


def _worst(found: Found | None) -> str:
    return MISSING if found is None else show_error(found.error)


def _whose(found: Found | None, names: Names) -> str:
    return MISSING if found is None else _name(found.pair, names)


def _name(pair: Pair, names: Names) -> str:
    return names[pair.predicted.spec.trial_id]


def _place(found: Found, names: Names) -> str:
    """Which figure of which trial, in words."""
    cell = found.cell
    return (
        f"{_name(found.pair, names)}, {phase_name((cell.step, cell.phase))}, {cell.place.value} {cell.quantity.value}"
    )


def _under_predictions(pairs: Sequence[Pair], names: Names) -> Part:
    found = under_predictions(pairs)
    lines = [
        f"{_place(one, names)}: {show_error(one.error)} ({format_bytes(one.cell.predicted_bytes)} predicted,"
        f" {format_bytes(one.cell.measured_bytes)} measured)"
        for one in found
    ]
    return Part(
        f"Under-predictions beyond {UNDER_PREDICTION:.0%}: {len(found)}",
        "Totals that have to fit (peak; with CUDA also reserved and used), in each phase, worst first: a trial planned "
        "by these may run out of memory.",
        lines=_first(lines),
    )


def _unforeseen(pairs: Sequence[Pair], names: Names) -> list[str]:
    """Of each prediction and place, the most that kernels worked in beside what is compared."""
    found = [(pair, place, pair.unforeseen_bytes(place)) for pair in pairs for place in Place]
    return _first(
        [f"{_name(pair, names)}, {place.value}: up to {format_bytes(size)}" for pair, place, size in found if size]
    )


def _refusals(pairs: Sequence[Pair], names: Names) -> Part:
    """Both mistakes about whether a trial fits."""
    caption = "False: the prediction says it does not fit, and it ran. Missed: it says it fits, and it ran out."
    if not has_capacity(pairs):
        return Part("Refusals: not applicable", "No device with a memory of its own: CPU ranks share the host's.")
    false, missed = false_refusals(pairs), missed_refusals(pairs)
    lines = [f"false: {_refusal(one, names)}" for one in false] + [f"missed: {_refusal(one, names)}" for one in missed]
    return Part(f"Refusals: {len(false)} false, {len(missed)} missed", caption, lines=_first(lines))


def _refusal(refusal: Refusal, names: Names) -> str:
    needed = "ran out of memory" if refusal.needed_bytes is None else f"needs {format_bytes(refusal.needed_bytes)}"
    capacity = "" if refusal.capacity_bytes is None else f" of the device's {format_bytes(refusal.capacity_bytes)}"
    ran = listed([names[trial.spec.trial_id] for trial in refusal.pair.candidates], most=3)
    return f"{_name(refusal.pair, names)} {needed}{capacity}; measured by {ran}"


def _first(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - _MOST_NAMED
    return [*lines[:_MOST_NAMED], *([f"and {rest} more: see errors.csv"] if rest > 0 else [])]
