"""How far predictions are off, as `zerobench validate` says it, and which of them would have cost a run.

Three mistakes stand apart from the statistics, because each costs a person more than a wide error bar:

- an under-prediction: the prediction is so much too small that a trial planned by it may run out of memory;
- a false refusal: the prediction says that the trial does not fit in the device, and it ran;
- a missed refusal: the prediction says that it fits, and it ran out of device memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from zerobench.common.vocabulary import Phase, Place, Status, StepKind
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.trial.trial import Evidence
from zerobench.records.trials import Trial, completed
from zerobench.report.figures.capacity import device_need
from zerobench.report.figures.predictions.figures import Quantity
from zerobench.report.figures.predictions.predicted import Cell, Pair, other_device

UNDER_PREDICTION = 0.01
"""An error below minus this, of a figure that has to fit, is an under-prediction that is named."""

PHASES = [(StepKind.FIRST, phase) for phase in Phase] + [
    (StepKind.STEADY, phase) for phase in Phase if phase is not Phase.INIT
]
"""The phases of a record in the order of a run."""


@dataclass(frozen=True)
class CellError:
    """A cell and the pair that it is of."""

    pair: Pair
    cell: Cell

    @property
    def error(self) -> float:
        """The cell's error, which is defined."""
        error = self.cell.error
        if error is None:
            raise ValueError("nothing measured, no relative error")
        return error


When = tuple[StepKind, Phase] | None
"""A phase, or all of them."""


@dataclass(frozen=True)
class ErrorRow:
    """A line of the error table: one world, place and quantity, in one phase or, with None, in all of them.

    The relative error of a cell is (predicted - measured) / measured.
    """

    evidence: Evidence
    against: Evidence
    """Pair.against."""
    place: Place
    quantity: Quantity
    when: When
    num_cells: int
    """Cells with an error: those of which something was measured."""
    median: float
    """The median of the ABSOLUTE relative errors (of an even number, the mean of the middle two)."""
    worst_over: CellError | None
    """The cell with the largest error above 0, the first of equals; None where no prediction was too large."""
    worst_under: CellError | None
    """The cell with the error farthest below 0, the first of equals; None where no prediction was too small."""


def error_rows(pairs: Sequence[Pair]) -> list[ErrorRow]:
    """The error table over the totals of all pairs: world, what it is held against, place, quantity, then phases, then
    all phases together; nothing of what has no cell with an error.
    """
    totals = [CellError(pair, cell) for pair in pairs for cell in pair.totals.values() if cell.error is not None]
    rows = []
    for kind in product(Evidence, (Evidence.MEASURED, Evidence.SOLO), Place, Quantity):
        these = [f for f in totals if (f.pair.predicted.spec.evidence, f.pair.against) == kind[:2]]
        these = [f for f in these if (f.cell.place, f.cell.quantity) == kind[2:]]
        phases: list[tuple[When, list[CellError]]] = [
            (when, [f for f in these if (f.cell.step, f.cell.phase) == when]) for when in PHASES
        ]
        rows += [_row(kind, when, errors) for when, errors in [*phases, (None, these)] if errors]
    return rows


def _row(kind: tuple[Evidence, Evidence, Place, Quantity], when: When, known: Sequence[CellError]) -> ErrorRow:
    highest, lowest = max(known, key=lambda one: one.error), min(known, key=lambda one: one.error)
    return ErrorRow(
        *kind,
        when,
        num_cells=len(known),
        median=statistics.median(abs(one.error) for one in known),
        worst_over=highest if highest.error > 0 else None,
        worst_under=lowest if lowest.error < 0 else None,
    )


def under_predictions(pairs: Sequence[Pair], beyond: float = UNDER_PREDICTION) -> list[CellError]:
    """Totals predicted too small by more than the fraction `beyond`, the worst first.

    Of the quantities that have to fit: peak, reserved and used, of every place. What is live at a phase's end never
    decides whether a trial runs.
    """
    totals = [CellError(p, c) for p in pairs for c in p.totals.values() if c.quantity is not Quantity.LIVE]
    small = [error for error in totals if error.cell.error is not None and error.error < -beyond]
    return sorted(small, key=lambda error: error.error)


def from_nothing(pairs: Sequence[Pair]) -> list[CellError]:
    """Totals that were predicted and of which nothing was measured: they have no relative error."""
    return [CellError(pair, cell) for pair in pairs for cell in pair.totals.values() if cell.error is None]


@dataclass(frozen=True)
class Refusal:
    """A prediction that was wrong about whether the trial fits in the device."""

    pair: Pair
    needed_bytes: int | None
    """None where the predicted trial itself ended out of device memory."""
    capacity_bytes: int | None


def has_capacity(pairs: Sequence[Pair]) -> bool:
    """Whether for any of the pairs it is known how much the device holds; on CPUs it is not."""
    return any(capacity_bytes(pair) is not None for pair in pairs)


def false_refusals(pairs: Sequence[Pair]) -> list[Refusal]:
    """Predictions that say the trial does not fit, where a believed trial that measured it completed."""
    return [refusal for pair in pairs if pair.measured and (refusal := _refusal(pair)) is not None]


def missed_refusals(pairs: Sequence[Pair]) -> list[Refusal]:
    """Predictions that say the trial fits, where all that measured it ran out of device memory."""
    return [
        Refusal(pair, _needed_bytes(pair.predicted), capacity_bytes(pair))
        for pair in pairs
        if completed(pair.predicted)
        and _refusal(pair) is None
        and all(_ran_out(trial) and other_device(trial, pair.predicted) is None for trial in pair.candidates)
    ]


def _refusal(pair: Pair) -> Refusal | None:
    """What the prediction says, in the sense of a plan (capacity.py); None where it says that the trial fits."""
    capacity = capacity_bytes(pair)
    if _ran_out(pair.predicted):
        return Refusal(pair, None, capacity)
    needed = _needed_bytes(pair.predicted)
    if not completed(pair.predicted) or needed is None or capacity is None or needed <= capacity:
        return None
    return Refusal(pair, needed, capacity)


def _needed_bytes(trial: Trial) -> int | None:
    need = device_need(trial)
    return None if need is None else need.total_bytes


def _ran_out(trial: Trial) -> bool:
    return trial.record.status is Status.OUT_OF_DEVICE_MEMORY


def capacity_bytes(pair: Pair) -> int | None:
    """Memory of the GPU that the prediction is for: as NVML saw it in the measured trials, else as catalogued.

    None on a CPU, and for a GPU that nobody has catalogued.
    """
    gpu = pair.predicted.spec.prediction.gpu
    ranks = [rank for trial in (*pair.candidates, pair.predicted) for rank in trial.ranks]
    devices = [device for trial in pair.candidates for node in trial.record.nvml for device in node.devices]
    sizes = [device.total_bytes for device in devices if device.total_bytes is not None]
    if gpu is None and sizes:
        return min(sizes)
    names = [gpu] if gpu is not None else [rank.device_name for rank in ranks if rank.device_type == "cuda"]
    known = [entry.capacity_bytes for name in dict.fromkeys(names) if (entry := find_gpu(name)) is not None]
    return min((size for size in known if size is not None), default=None)
