"""Predicted against measured: the figures, their join by config_hash, and the table of errors."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from benchmarks.prediction.simulated import device_rows, table
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.records.records import RankRecord
from zerobench.report.words.column_units import show_error

MEDIAN_GOAL, WORST_GOAL, UNDER_GOAL = 0.005, 0.03, 0.01
"""Of the device's peak, per phase: median and worst error at most, and under-prediction at most."""

PHASES = [(StepKind.FIRST, phase) for phase in Phase] + [(StepKind.STEADY, phase) for phase in list(Phase)[1:]]
QUANTITIES = ("peak", "live")
_WORST_NAMED = 20


@dataclass(frozen=True)
class Figure:
    """The total of the device on rank 0 over one phase of one cell; a row of the CSV files."""

    config_hash: str
    model: str
    strategy: str
    offload_optimizer: str
    offload_param: str
    world_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    sequence_length: int
    precision: str
    activation_checkpointing: int
    step: str
    phase: str
    live_bytes: int
    peak_bytes: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What is equal in a prediction and the measurement of the same figure."""
        return self.config_hash, self.step, self.phase

    @property
    def name(self) -> str:
        """The cell in words."""
        places = self.offload_optimizer, self.offload_param
        offload = "" if set(places) == {Offload.NONE.value} else f" {'+'.join(places)}"
        return f"{self.model} {self.strategy}{offload} n{self.world_size}"


class FigurePair(NamedTuple):
    """One quantity of one phase of one cell."""

    name: str
    when: str
    quantity: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """Predicted minus measured over measured: below 0 where the prediction is too small."""
        return (self.predicted_bytes - self.measured_bytes) / self.measured_bytes


def figures(trial: TrialSpec, rank: RankRecord) -> Iterator[Figure]:
    """A figure for each phase of the first and of a steady step."""
    axes: dict[str, Any] = {field.name: getattr(trial, field.name, None) for field in fields(Figure)}
    axes |= {"model": trial.model.name, "activation_checkpointing": int(trial.activation_checkpointing)}
    for step, phase in PHASES:
        total = device_rows(rank, step, phase)[Category.TOTAL]
        taken = {"live_bytes": total.live_bytes, "peak_bytes": total.foreseeable_peak_bytes}
        yield Figure(**{**axes, **taken, "step": str(step), "phase": str(phase)})


def join(predicted: Sequence[Figure], measured: Sequence[Figure]) -> list[FigurePair]:
    """Every measured figure beside its prediction, peak then live. Raises UserError where one has no counterpart."""
    by_key = {figure.key: figure for figure in predicted}
    if by_key.keys() != {figure.key for figure in measured}:
        odd = sorted(by_key.keys() ^ {figure.key for figure in measured})
        raise UserError(f"{len(odd)} figures are only predicted or only measured, the first is {' '.join(odd[0])}")
    return [
        FigurePair(
            figure.name, f"{figure.step} {figure.phase}", quantity, *(getattr(f, f"{quantity}_bytes") for f in pair)
        )
        for quantity in QUANTITIES
        for figure in measured
        for pair in [(by_key[figure.key], figure)]
    ]


def error_lines(joined: Sequence[FigurePair]) -> list[str]:
    """The table of errors per quantity and phase, then each peak that is predicted too small, and the goals."""
    rows: list[tuple[str, ...]] = []
    for quantity in QUANTITIES:
        these = [pair for pair in joined if pair.quantity == quantity]
        phases = [*dict.fromkeys(pair.when for pair in these), "all"]
        rows += [(quantity, when, *_statistics([o for o in these if when in {o.when, "all"}])) for when in phases]
    headers = ("quantity", "phase", "cells", "median", "over", "under", "whose over", "whose under")
    return [*table(headers, rows, texts=2), *_too_small(joined), *_goals(joined)]


def _statistics(these: Sequence[FigurePair]) -> tuple[str, ...]:
    """Cells, median of the absolute errors, the errors farthest above and below 0, and whose they are."""
    over, under = max(these, key=lambda pair: pair.error), min(these, key=lambda pair: pair.error)
    worst = [
        (pair, show_error(pair.error)) if pair.error * sign > 0 else (None, "-")
        for pair, sign in ((over, 1), (under, -1))
    ]
    median = show_error(statistics.median(abs(pair.error) for pair in these)).removeprefix("+")
    return str(len(these)), median, *(text for _, text in worst), *(pair.name if pair else "-" for pair, _ in worst)


def _too_small(joined: Sequence[FigurePair]) -> list[str]:
    """The peaks predicted too small, which is what makes a plan run out of memory: how many, and the worst of them."""
    peaks = [pair for pair in joined if pair.quantity == "peak"]
    below = sorted((pair for pair in peaks if pair.error < 0), key=lambda pair: pair.error)
    beyond = sum(pair.error < -UNDER_GOAL for pair in below)
    title = (
        f"## Peaks predicted too small: {len(below)} of {len(peaks)}, {beyond} of them by more than {UNDER_GOAL:.0%}"
    )
    rows = [(o.name, o.when, show_error(o.error, 3), f"{o.predicted_bytes:,}", f"{o.measured_bytes:,}") for o in below]
    worst = table(("worst", "phase", "error", "predicted, B", "measured, B"), rows[:_WORST_NAMED], texts=2)
    return [title, "", *(worst if rows else [])]


def _goals(joined: Sequence[FigurePair]) -> list[str]:
    """What the device's peaks must reach, and whether they do."""
    errors = [pair.error for pair in joined if pair.quantity == "peak"]
    median, worst, lowest = statistics.median(map(abs, errors)), max(map(abs, errors)), min(0.0, *errors)
    reached = [
        ("median error of peaks", median, median <= MEDIAN_GOAL, f"at most {MEDIAN_GOAL:.1%}"),
        ("worst error of peaks", worst, worst <= WORST_GOAL, f"at most {WORST_GOAL:.0%}"),
        ("lowest error of peaks", lowest, lowest >= -UNDER_GOAL, f"not below {-UNDER_GOAL:.0%}"),
    ]
    return table(
        ("", "found", "goal", ""), [(n, f"{e:.3%}", g, "reached" if ok else "MISSED") for n, e, ok, g in reached]
    )
