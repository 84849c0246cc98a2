"""Errors of predicted device peaks, where the run measured the same work."""

from collections.abc import Sequence

from zerobench.common.vocabulary import Place
from zerobench.report.figures.predictions.predicted import Cell
from zerobench.report.figures.run.runs import Errors
from zerobench.report.tables.model import Column, Line, Table
from zerobench.report.words.column_units import show_error, show_whole

TITLE = "Predicted against measured"
HOW_TO_READ = (
    "Device memory by phase, predicted against measured; largest error of each trial, positive where the "
    "prediction is too large."
)
_COLUMNS: Sequence[Column[Cell]] = (
    Column("phase", lambda cell: f"{cell.step.value} {cell.phase.value}", is_text=True),
    Column("measured", lambda cell: show_whole(cell.measured_bytes), "bytes"),
    Column("predicted", lambda cell: show_whole(cell.predicted_bytes), "bytes"),
    Column("error", lambda cell: show_error(cell.error)),
)


def peak_errors_table(predicted: Sequence[Errors]) -> Table[Cell]:
    """The worst peak of each prediction."""
    known = [
        (errors.trial.name, [cell for cell in errors.peaks(Place.DEVICE) if cell.error is not None])
        for errors in predicted
    ]
    lines = [Line(name, max(cells, key=lambda cell: abs(cell.error or 0))) for name, cells in known if cells]
    return Table(TITLE, HOW_TO_READ, _COLUMNS, lines)
