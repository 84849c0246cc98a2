"""A plan's communication, and the shortest time that a step can take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from zerobench.common.units import format_count
from zerobench.common.vocabulary import StepKind
from zerobench.config.derived.training import Training
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.report.figures.trial import TrialFigures, evidence_words
from zerobench.report.tables.model import Column, Line, Table, of_part
from zerobench.report.words.column_units import MISSING, Unit, byte_unit, show_number, show_whole, time_unit

_KINDS = ("all_reduce", "reduce_scatter", "all_gather")


def time_tables(rows: Sequence[TrialFigures], training: Training | None) -> Iterator[Table[TrialFigures]]:
    """Bytes of each collective in a step, then the bounds; with a training, how long it takes."""
    if any(traffic(row) for row in rows):
        yield _traffic(rows)
    if any(row.least_step_s for row in rows):
        yield _bounds(rows, training)


def traffic(row: TrialFigures) -> Counter[str]:
    """Bytes of the messages of one rank in a steady step, by kind of collective; its largest rank's."""
    by_rank = [Counter[str]() for _ in row.trial.ranks]
    for rank, moved in zip(row.trial.ranks, by_rank, strict=True):
        for collective in rank.collectives:
            if collective.step is StepKind.STEADY and collective.group_size > 1:
                moved[collective.kind] += collective.message_bytes
    return max(by_rank, key=Counter.total, default=Counter())


def _traffic(rows: Sequence[TrialFigures]) -> Table[TrialFigures]:
    moved = {id(row): traffic(row) for row in rows}
    unit = byte_unit(moves.total() for moves in moved.values())

    def kind(name: str) -> Column[TrialFigures]:
        header = name.replace("_", "-")
        return Column(header, lambda row: unit.show(moved[id(row)][name]), narrow=header)

    def others(row: TrialFigures) -> str:
        return unit.show(sum(size for name, size in moved[id(row)].items() if name not in _KINDS))

    columns: list[Column[TrialFigures]] = [
        *map(kind, _KINDS),
        Column("others", others, narrow="others"),
        Column("all", lambda row: unit.show(moved[id(row)].total()), narrow="all"),
    ]
    how = "by formula, as DeepSpeed and torch move them" if _are_formulas(rows) else "counted at the engine's calls"
    return Table(
        f"Predicted ({evidence_words(rows)}): bytes per collective and step, {unit.name}",
        (
            f"Message sizes of one rank over one optimizer step, {how}. A ring sends each byte of "
            "an all-reduce about twice, of the others about once."
        ),
        columns,
        [Line(row.name, row) for row in rows],
    )


def _are_formulas(rows: Sequence[TrialFigures]) -> bool:
    return all(row.spec.evidence is Evidence.FORMULA for row in rows)


def _bounds(rows: Sequence[TrialFigures], training: Training | None) -> Table[TrialFigures]:
    lines = [Line(row.name, row) for row in rows if row.bound is not None]
    unit = time_unit([row.least_step_s for row in rows])
    most: Callable[[TrialFigures], str] = of_part(lambda row: row.bound, lambda bound: show_whole(bound.tokens_per_s))
    columns: list[Column[TrialFigures]] = [
        *(_term(*names, unit) for names in _TERMS.items() if any(_term_s(row, names[0]) for row in rows)),
        Column("step", lambda row: unit.show(row.least_step_s), narrow="step"),
        Column("most tokens/s", most, narrow=None if training else "tok/s"),
        Column("largest part", lambda row: (row.bound and row.bound.limited_by) or MISSING, is_text=True),
    ]
    note = ""
    if training:
        columns += _duration(training)
        note = f" Days and GPU-hours of {format_count(training.tokens)} tokens: lower bounds too."
    how = "FLOPs and bytes by formula" if _are_formulas(rows) else "counted FLOPs and bytes"
    caption = f"From {how} at datasheet peak rates with perfect overlap; real steps are longer.{note}"
    return Table(f"Lower bound of the step time, {unit.name}", caption, columns, lines)


_TERMS = {"compute": "compute", "communication": "comm", "optimizer": "optim", "offload": "offl", "nvme": "nvme"}
"""The terms of a bound, with their short names."""


def _term(name: str, short: str, unit: Unit) -> Column[TrialFigures]:
    return Column(name, lambda row: unit.show(_term_s(row, name)), narrow=short)


def _term_s(row: TrialFigures, name: str) -> float | None:
    seconds: float | None = getattr(row.bound, f"{name}_s", None)
    return seconds


def _duration(training: Training) -> Iterator[Column[TrialFigures]]:
    """Days and GPU-hours in the shortest steps."""

    def at_least(
        read: Callable[[float, TrialSpec], float], show: Callable[[float | None], str]
    ) -> Callable[[TrialFigures], str]:
        return lambda row: show(read(row.least_step_s, row.spec) if row.least_step_s else None)

    yield Column("least days", at_least(training.days, show_number), narrow="days")
    yield Column("least GPU-hours", at_least(training.gpu_hours, show_whole), narrow="GPU-h")
