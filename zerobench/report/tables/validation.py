"""Document of `zerobench validate`: errors of predictions, and by name those that would have cost a run."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from zerobench.common.units import counted, format_bytes
from zerobench.common.vocabulary import Place
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.clock.place import gpu_of
from zerobench.records.trials import Trial, completed
from zerobench.report.figures.notes import listed
from zerobench.report.figures.predictions.errors import (
    UNDER_PREDICTION,
    CellError,
    ErrorRow,
    Refusal,
    error_rows,
    false_refusals,
    from_nothing,
    has_capacity,
    missed_refusals,
    under_predictions,
)
from zerobench.report.figures.predictions.figures import Quantity
from zerobench.report.figures.predictions.predicted import Pair
from zerobench.report.figures.predictions.times import TimeRow, step_times
from zerobench.report.tables.model import Column, of_part
from zerobench.report.tables.part import Listing, Part, few
from zerobench.report.tables.predictions import UNFORESEEN, Names, left_out_lines, phase_name
from zerobench.report.words.column_units import show_error, time_unit
from zerobench.report.words.labels import shared_lines

_IN_FILE = ": see errors.csv"
"""The file with the cells that are counted and not named."""


def validation_parts(trials: Sequence[Trial], pairs: Sequence[Pair], names: Names) -> Iterator[Part]:
    """Compared trials, the error table of each world and place, then the mistakes that cost a run."""
    yield _overview(trials, pairs)
    for (world, against, place), rows in groupby(error_rows(pairs), key=attrgetter("evidence", "against", "place")):
        title = f"{world.value} against {against.value}: {place.value} memory"
        yield Part(title[0].upper() + title[1:], _CAPTION, _errors(list(rows), names))
    if times := list(step_times(pairs)):
        yield Part("Step time", _TIME_CAPTION, _times(times, names))
    if any(pair.cells for pair in pairs):
        yield _too_small(pairs, names)
    if pairs:
        yield _refusals(pairs, names)
    if undefined := from_nothing(pairs):
        lines = [f"{_place(error, names)}: {format_bytes(error.cell.predicted_bytes)}" for error in undefined]
        yield Part("Predicted, not measured", "No relative error defined.", points=few(lines, _IN_FILE))
    if unforeseen := _unforeseen(pairs, names):
        yield Part(
            "Not predicted", f"{UNFORESEEN[0].upper()}{UNFORESEEN[1:]}: not in the peaks above.", points=unforeseen
        )
    if left_out := left_out_lines(pairs, names):
        yield Part("Not compared", points=left_out)


def validation_answer(pairs: Sequence[Pair], names: Names) -> Part:
    """Each world's errors over all phases, and how many mistakes would have cost a run: what fits a screen."""
    rows = [row for row in error_rows(pairs) if row.when is None and row.quantity is not Quantity.LIVE]
    columns: list[Column[ErrorRow]] = [
        Column("predicted", lambda row: row.evidence.value, narrow="predicted", is_text=True),
        Column("against", lambda row: row.against.value, narrow="against", is_text=True),
        Column("memory", lambda row: row.place.value, narrow="memory", is_text=True),
        *_error_columns(names),
    ]
    times = list(step_times(pairs))
    points = []
    if times:
        points.append(f"Step time: {sum(row.is_inside for row in times)} of {len(times)} within their interval")
    elif pairs and not any(gpu_of(pair.predicted) for pair in pairs):
        points.append("Step time: none is expected of CPU ranks")
    counted = [_too_small(pairs, names)] if pairs else []
    if has_capacity(pairs):
        counted.append(_refusals(pairs, names))
    left_out = left_out_lines(pairs, names)
    points.extend("; ".join([part.title, *part.points[:1]]) for part in counted)
    if left_out:
        points.append(f"Not compared: {listed(left_out, most=1)}")
    return Part("Errors over all phases", table=Listing(columns, rows) if rows else None, points=points)


_CAPTION = (
    "Totals of the predicted rank. median: of the absolute relative errors, |predicted - measured| / "
    "measured. over, under: worst error above and below the measurement. 0: equal to the byte."
)


def _overview(trials: Sequence[Trial], pairs: Sequence[Pair]) -> Part:
    """Settings that the trials have in common, their number in each world, and how many of them are compared."""
    lines = shared_lines([trial.spec for trial in trials])
    for world in Evidence:
        of_world = [trial for trial in trials if trial.spec.evidence is world]
        compared = [pair for pair in pairs if pair.predicted.spec.evidence is world and pair.cells]
        ran = sum(map(completed, of_world))
        held = "" if world is Evidence.MEASURED else f", {counted(len(compared), 'prediction')} compared"
        if of_world:
            lines.append(f"{world.value}: {counted(len(of_world), 'trial')}, {ran} completed{held}")
    return Part("Predictions against measurements", points=lines)


def _errors(rows: Sequence[ErrorRow], names: Names) -> Listing[ErrorRow]:
    """A row for each quantity and phase."""
    quantity, *errors = _error_columns(names)
    phase = Column[ErrorRow](
        "phase", lambda row: phase_name(row.when) if row.when else "all", narrow="phase", is_text=True
    )
    return Listing([quantity, phase, *errors], rows)


def _error_columns(names: Names) -> list[Column[ErrorRow]]:
    def off(error: CellError) -> str:
        return show_error(error.error)

    def name(error: CellError) -> str:
        return _name(error.pair, names)

    return [
        Column("quantity", lambda row: row.quantity.value, narrow="quantity", is_text=True),
        Column("cells", lambda row: str(row.num_cells), narrow="cells"),
        Column("median", lambda row: show_error(row.median).removeprefix("+"), narrow="median"),
        Column("over", of_part(lambda row: row.worst_over, off), narrow="over"),
        Column("under", of_part(lambda row: row.worst_under, off), narrow="under"),
        Column("worst over", of_part(lambda row: row.worst_over, name), is_text=True),
        Column("worst under", of_part(lambda row: row.worst_under, name), is_text=True),
    ]


_TIME_CAPTION = (
    "expected: of a steady step by the time model, which says that eight of ten lie between low and high."
    " measured: median over the timed steps of the slowest rank, then over repeats."
)


def _times(rows: Sequence[TimeRow], names: Names) -> Listing[TimeRow]:
    """A row for each prediction."""
    unit = time_unit([row.measured_s for row in rows])
    expected = f"expected {unit.name}"
    columns: list[Column[TimeRow]] = [
        Column("trial", lambda row: _name(row.pair, names), narrow="trial", is_text=True),
        Column(expected, lambda row: unit.show(row.expected.step_s), narrow=expected),
        Column("low", lambda row: unit.show(row.expected.low_s), narrow="low"),
        Column("high", lambda row: unit.show(row.expected.high_s), narrow="high"),
        Column(f"measured {unit.name}", lambda row: unit.show(row.measured_s), narrow="measured"),
        Column("error", lambda row: show_error(row.error), narrow="error"),
        Column("inside", lambda row: "yes" if row.is_inside else "no", is_text=True),
    ]
    return Listing(columns, rows)


def _name(pair: Pair, names: Names) -> str:
    return names[pair.predicted.spec.trial_id]


def _place(error: CellError, names: Names) -> str:
    """The figure and its trial, in words."""
    name, cell = _name(error.pair, names), error.cell
    return f"{name}, {phase_name((cell.step, cell.phase))}, {cell.place.value} {cell.quantity.value}"


def _too_small(pairs: Sequence[Pair], names: Names) -> Part:
    errors = under_predictions(pairs)
    lines = [
        f"{_place(error, names)}: {show_error(error.error)} ({format_bytes(error.cell.predicted_bytes)} predicted,"
        f" {format_bytes(error.cell.measured_bytes)} measured)"
        for error in errors
    ]
    return Part(
        f"Under-predictions beyond {UNDER_PREDICTION:.0%}: {len(errors)}",
        (
            "Totals that must fit (peak; with CUDA also reserved and used), in each phase, worst first: a "
            "trial planned by these may run out of memory."
        ),
        points=few(lines, _IN_FILE),
    )


def _unforeseen(pairs: Sequence[Pair], names: Names) -> list[str]:
    """The largest workspace of kernels beside what is compared, for each prediction and place."""
    sizes = {(_name(pair, names), place): pair.unforeseen_bytes(place) for pair in pairs for place in Place}
    lines = [f"{name}, {place.value}: up to {format_bytes(size)}" for (name, place), size in sizes.items() if size]
    return few(lines, _IN_FILE)


def _refusals(pairs: Sequence[Pair], names: Names) -> Part:
    """Both mistakes about whether a trial fits."""
    caption = "False: predicted not to fit, but ran. Missed: predicted to fit, but ran out of memory."
    if not has_capacity(pairs):
        return Part("Refusals: not applicable", "CPU ranks share host memory: no device limit.")
    false, missed = false_refusals(pairs), missed_refusals(pairs)
    lines = [
        f"{how}: {_refusal(each, names)}" for how, those in (("false", false), ("missed", missed)) for each in those
    ]
    return Part(f"Refusals: {len(false)} false, {len(missed)} missed", caption, points=few(lines, _IN_FILE))


def _refusal(refusal: Refusal, names: Names) -> str:
    needed = "ran out of memory" if refusal.needed_bytes is None else f"needs {format_bytes(refusal.needed_bytes)}"
    capacity = "" if refusal.capacity_bytes is None else f" of the device's {format_bytes(refusal.capacity_bytes)}"
    ran = listed([names[trial.spec.trial_id] for trial in refusal.pair.candidates], most=3)
    return f"{_name(refusal.pair, names)} {needed}{capacity}; measured: {ran}"
