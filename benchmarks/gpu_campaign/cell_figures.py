"""The figures of a cell that a prediction and its measurement both have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Category
from zerobench.records.trials import Trial
from zerobench.report.figures.capacity import device_need
from zerobench.report.figures.predictions.figures import figures
from zerobench.report.words.labels import labels

NEEDED = "needed"
"""What decides whether a cell fits: tensors, the allocator's slack, CUDA context and NCCL, at the worst instant."""


@dataclass(frozen=True)
class Figure:
    """One figure of one rank of a cell; a row of the CSV file."""

    config_hash: str
    cell: str
    """The cell in words."""
    rank: int
    step: str
    phase: str
    place: str
    quantity: str
    """`live`, `peak`, `reserved`, `used` of a phase, or `needed` of the whole trial, which has no phase."""
    bytes: int

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal in a prediction and the measurement of the same figure."""
        return self.config_hash, self.rank, self.step, self.phase, self.place, self.quantity


def _figures_of(trial: Trial, cell: str) -> Iterator[Figure]:
    """The totals of the rank that `trial` plays, and what it needs of its device."""
    number = trial.spec.prediction.rank
    work = trial.spec.config_hash
    for rank in trial.ranks:
        if rank.rank != number:
            continue
        for key, size in figures(rank).items():
            if key.category is Category.TOTAL:
                yield Figure(work, cell, number, key.step, key.phase, key.place, key.quantity, size)
    if (need := device_need(trial)) is not None:
        yield Figure(work, cell, number, "", "", "device", NEEDED, need.total_bytes)


def figures_of_cells(trials: Sequence[Trial]) -> list[Figure]:
    """The figures of all trials, each with its cell in words."""
    names = labels([trial.spec for trial in trials])
    return [figure for trial, name in zip(trials, names, strict=True) for figure in _figures_of(trial, name)]
