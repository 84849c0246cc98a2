"""Predictions beside what was measured: totals by phase, categories at the peak, what is missing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.trial import Evidence
from zerobench.records.instants import GROUPS
from zerobench.report.figures.notes import listed
from zerobench.report.figures.predictions.errors import PHASES
from zerobench.report.figures.predictions.figures import Key, Quantity
from zerobench.report.figures.predictions.predicted import Cell, Pair
from zerobench.report.tables.model import WIDE, Column, of_part
from zerobench.report.tables.part import Listing, Part
from zerobench.report.words.column_units import Unit, byte_unit, show_error

Names = Mapping[str, str]
"""Labels of a run's trials by trial_id."""

TITLE = "Predicted against measured"
UNFORESEEN = "workspace of kernels and collectives (kernel_workspace)"


def predicted_parts(pairs: Sequence[Pair], names: Names, width: int) -> Iterator[Part]:
    """For `width` columns: the places for which both sides have totals, then the trials that were not compared."""
    for place in Place:
        rows = [row for pair in pairs for row in _phase_rows(pair, place, names)]
        if rows:
            yield _phase_table(place, rows, width, unforeseen=max(pair.unforeseen_bytes(place) for pair in pairs))
        if blocks := [(pair, key) for pair in pairs if (key := _peak(pair, place)) is not None]:
            yield _category_table(place, blocks, names, width)
    if lines := left_out_lines(pairs, names):
        yield Part(f"{TITLE}: not compared", warnings=lines)


@dataclass(frozen=True)
class _PhaseRow:
    """The totals of one phase."""

    label: str
    """Empty but on a prediction's first row."""
    phase: str
    live: Cell | None
    peak: Cell | None


def phase_name(when: tuple[StepKind, Phase]) -> str:
    """`init`, `first forward`, `forward`: phases of the steady step by their names alone."""
    step, phase = when
    return phase.value if step is StepKind.STEADY or phase is Phase.INIT else f"{step.value} {phase.value}"


def _phase_rows(pair: Pair, place: Place, names: Names) -> list[_PhaseRow]:
    """A row for each phase of which both sides have a total; the label stands on the first."""
    rows: list[_PhaseRow] = []
    for when in PHASES:
        live, peak = (pair.totals.get((*when, place, quantity)) for quantity in (Quantity.LIVE, Quantity.PEAK))
        if live or peak:
            label = "" if rows else names[pair.predicted.spec.trial_id]
            rows.append(_PhaseRow(label, phase_name(when), live, peak))
    return rows


def _beside(unit: Unit, name: str, part: Callable[[_PhaseRow], Cell | None]) -> Iterator[Column[_PhaseRow]]:
    """Measured, predicted, and the error of the prediction."""
    yield Column(name, of_part(part, lambda cell: unit.show(cell.measured_bytes)), narrow=name)
    yield Column("predicted", of_part(part, lambda cell: unit.show(cell.predicted_bytes)), narrow="pred")
    yield Column("error", of_part(part, lambda cell: show_error(cell.error)), narrow="error")


def _peak_of(row: _PhaseRow) -> Cell | None:
    return row.peak


def _phase_table(place: Place, rows: Sequence[_PhaseRow], width: int, *, unforeseen: int) -> Part:
    cells = [cell for row in rows for cell in (row.live, row.peak) if cell is not None]
    unit = byte_unit(size for cell in cells for size in (cell.measured_bytes, cell.predicted_bytes))
    columns: list[Column[_PhaseRow]] = [
        Column("prediction", lambda row: row.label, narrow="trial", is_text=True),
        Column("phase", lambda row: row.phase, narrow="phase", is_text=True),
        *_beside(unit, "live", lambda row: row.live),
        *_beside(unit, "peak", _peak_of),
        Column("min rank", of_part(_peak_of, lambda cell: unit.show(cell.measured_min_bytes))),
        Column("max rank", of_part(_peak_of, lambda cell: unit.show(cell.measured_max_bytes))),
    ]
    host = " Host: tensors only." if place is Place.HOST else ""
    ranks = " min, max rank: measured peaks across ranks." if width >= WIDE else ""
    kernels = f" Not predicted and not in these peaks: {UNFORESEEN}, up to {format_bytes(unforeseen)}."
    return Part(
        f"{TITLE}: {place.value} memory by phase, {unit.name}",
        (
            "The predicted rank: measured, predicted, relative error of the prediction (negative: too "
            "small; 0: equal to the byte). live: at the phase's end. Unmarked phases: steady "
            f"step.{ranks}{host}{kernels if unforeseen else ''}"
        ),
        Listing(columns, rows),
    )


_NARROW = {
    "parameters": "param",
    "gradients": "grad",
    "optimizer": "optim",
    "buffers": "buffer",
    "activations": "activ",
    "logits": "logits",
    "temporaries": "temp",
    "unattributed": "unattr",
}
_COLUMNS: Mapping[str, tuple[Category, ...]] = {
    **{name: GROUPS[name] for name in _NARROW},
    "temporaries": (*GROUPS["temporaries"], *GROUPS["small"]),
}
"""Groups of categories, which add up to the total; the small ones count as temporaries."""


@dataclass(frozen=True)
class _Line:
    """One row of a table of categories: what was measured, predicted, or the error of the two."""

    label: str
    what: str
    phase: str
    cells: Mapping[str, str]
    """Cells by the names of `_COLUMNS`, and `peak`."""


def _peak(pair: Pair, place: Place) -> Key | None:
    """The total at the largest measured peak of a steady step, if that phase was predicted too.

    None too where a side knows no categories there, so that there would be nothing to show.
    """
    steady = [
        cell
        for (step, _, where, quantity), cell in pair.totals.items()
        if (step, where, quantity) == (StepKind.STEADY, place, Quantity.PEAK)
    ]
    top = max(steady, key=lambda cell: cell.measured_bytes, default=None)
    if top is None:
        return None
    total = Key(StepKind.STEADY, top.phase, place, Category.TOTAL, Quantity.PEAK)
    parts = [total._replace(category=category) for category in Category if category is not Category.TOTAL]
    return total if any(key in pair.predicted_figures for key in parts) else None


def _group(pair: Pair, total: Key, name: str) -> tuple[int | None, int | None]:
    """Measured and predicted bytes of one column; None where nothing of it is known."""
    categories = (Category.TOTAL,) if name == "peak" else _COLUMNS[name]
    keys = [total._replace(category=category) for category in categories]
    sides = [[v for k in keys if (v := side(k)) is not None] for side in (pair.measured_bytes, pair.predicted_bytes)]
    measured, predicted = (sum(values) if values else None for values in sides)
    return measured, predicted


def _block(pair: Pair, total: Key, unit: Unit, label: str, *, with_measured: bool, wide: bool) -> list[_Line]:
    """The measured row, unless the prediction above has it already, then the prediction and its error."""
    both = {name: _group(pair, total, name) for name in (*_COLUMNS, "peak")}
    world = pair.predicted.spec.evidence
    phase = phase_name((total.step, total.phase))
    measured = {name: unit.show(size) for name, (size, _) in both.items()}
    predicted = {name: unit.show(size) for name, (_, size) in both.items()}
    errors = {name: show_error(_fraction(*sides), 2 if wide else 1) for name, sides in both.items()}
    world_name = world.value if wide else _SHORT[world]
    against = pair.against.value if wide else _SHORT[pair.against]
    lines = [_Line(label, against, phase, measured)] if with_measured else []
    return [
        *lines,
        _Line("" if lines else label, world_name, "", predicted),
        _Line("", "error" if wide else "err", "", errors),
    ]


_SHORT = {
    Evidence.MEASURED: "meas",
    Evidence.SOLO: "solo",
    Evidence.EMULATED: "emul",
    Evidence.SIMULATED: "sim",
    Evidence.FORMULA: "form",
}


def _fraction(measured: int | None, predicted: int | None) -> float | None:
    if measured is None or predicted is None:
        return None
    if measured == predicted:
        return 0.0
    return predicted / measured - 1 if measured > 0 else None


def _category_table(place: Place, peaks: Sequence[tuple[Pair, Key]], names: Names, width: int) -> Part:
    wide = width >= WIDE
    totals = [_group(pair, total, "peak") for pair, total in peaks]
    unit = byte_unit(size for sides in totals for size in sides)
    rows: list[_Line] = []
    before: tuple[str, int] | None = None
    for pair, total in sorted(peaks, key=_first_of_work(peaks)):
        same = (pair.predicted.spec.config_hash, pair.rank)
        label = names[pair.measured[0].spec.trial_id] if same != before else ""
        rows += _block(pair, total, unit, label, with_measured=same != before, wide=wide)
        before = same
    columns: list[Column[_Line]] = [
        Column("trial", lambda line: line.label, narrow="trial", is_text=True),
        Column("world", lambda line: line.what, narrow="", is_text=True),
        Column("phase", lambda line: line.phase, is_text=True),
        *(Column(name, _cell(name), narrow=_NARROW.get(name, name)) for name in (*_COLUMNS, "peak")),
    ]
    small = "temporaries" if wide else "temp"
    return Part(
        f"{TITLE}: {place.value} memory at the peak of a steady step, {unit.name}",
        (
            f"The predicted rank, in the phase with the largest measured peak. {small}: including inputs, "
            "model buffers and rounding. No error without measured bytes."
        ),
        Listing(columns, rows),
    )


def _cell(name: str) -> Callable[[_Line], str]:
    return lambda line: line.cells[name]


def _first_of_work(peaks: Sequence[tuple[Pair, Key]]) -> Callable[[tuple[Pair, Key]], int]:
    """Sort key that brings the predictions of one measured rank together, in the order of the first of each."""
    work = [(pair.predicted.spec.config_hash, pair.rank) for pair, _ in peaks]
    return lambda peak: work.index((peak[0].predicted.spec.config_hash, peak[0].rank))


def left_out_lines(pairs: Sequence[Pair], names: Names) -> list[str]:
    """A line for each reason why trials are not compared, each trial once."""
    labels: dict[str, list[str]] = {}
    for pair in pairs:
        for left_out in pair.left_out:
            label = names[left_out.trial.spec.trial_id]
            reference = "" if left_out.reference is None else f" {names.get(left_out.reference, left_out.reference)}"
            held = labels.setdefault(f"{left_out.why}{reference}", [])
            if label not in held:
                held.append(label)
    return [f"{listed(held)}: {why}" for why, held in labels.items()]
