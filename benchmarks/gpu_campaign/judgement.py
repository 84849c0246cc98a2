"""How far the campaign's predictions are off: errors by quantity, the goals, and what was wrong about fitting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.gpu_campaign.cell_figures import NEEDED, Figure
from benchmarks.prediction.simulated import origin, table
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Status
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.trial.trial import Evidence
from zerobench.records.trials import Trial
from zerobench.report.figures.predictions.figures import Quantity
from zerobench.report.words.column_units import show_error

GOALS: dict[str, tuple[float | None, float]] = {
    Quantity.PEAK: (0.005, 0.03),
    Quantity.RESERVED: (None, 0.05),
    Quantity.USED: (None, 0.05),
}
"""Of each quantity on the device: the median of the absolute errors at most (None: no such goal), and the worst one."""

_WORST_NAMED = 20


class FigurePair(NamedTuple):
    """One figure, predicted and measured."""

    predicted: Figure
    measured: Figure

    @property
    def error(self) -> float:
        """Predicted minus measured over measured: below 0 where the prediction is too small."""
        return (self.predicted.bytes - self.measured.bytes) / self.measured.bytes

    @property
    def when(self) -> str:
        """`first forward`; empty for the whole trial."""
        return f"{self.measured.step} {self.measured.phase}".strip()


def as_markdown(predicted: Sequence[Figure], ran: Sequence[Trial], measured: Sequence[Figure], commit: str) -> str:
    """The judgement: `measured` are the figures of those of `ran` that completed."""
    joined = join(predicted, measured)
    cells = len({pair.measured.config_hash for pair in joined})
    counts = f"{len(ran)} cells ran, {cells} completed and were predicted; predictions committed {commit}."
    is_emulated = any(trial.spec.evidence is Evidence.EMULATED for trial in ran)
    meaning = "Totals of the device; error: (predicted - measured) / measured; median: of the absolute errors."
    return "\n".join(
        [
            f"# Predicted by simulation, then {'played on an emulated GPU' if is_emulated else 'measured on a GPU'}",
            "",
            *origin(),
            f"{counts} {meaning}",
            "",
            *_error_lines(joined),
            *_goal_lines(joined),
            *_too_small(joined),
            *_fit_lines(predicted, ran),
        ]
    )


def join(predicted: Sequence[Figure], measured: Sequence[Figure]) -> list[FigurePair]:
    """Every figure of the device that both have, and of which there is a byte."""
    by_key = {figure.key: figure for figure in predicted}
    pairs = [(by_key.get(figure.key), figure) for figure in measured if figure.place == "device" and figure.bytes > 0]
    return [FigurePair(before, after) for before, after in pairs if before is not None]


def _error_lines(joined: Sequence[FigurePair]) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for quantity in [*Quantity, NEEDED]:
        these = [pair for pair in joined if pair.measured.quantity == quantity]
        phases = [*dict.fromkeys(pair.when for pair in these if pair.when), "all"] if these else []
        rows += [(quantity, when, *_statistics([o for o in these if when in {o.when, "all"}])) for when in phases]
    return table(("quantity", "phase", "figures", "median", "over", "under", "whose under"), rows, texts=2)


def _statistics(these: Sequence[FigurePair]) -> tuple[str, ...]:
    median = show_error(statistics.median(abs(pair.error) for pair in these)).removeprefix("+")
    over, under = max(these, key=lambda pair: pair.error), min(these, key=lambda pair: pair.error)
    whose = under.measured.cell if under.error < 0 else "-"
    worst = (show_error(over.error) if over.error > 0 else "-", show_error(under.error) if under.error < 0 else "-")
    return str(len(these)), median, *worst, whose


def _goal_lines(joined: Sequence[FigurePair]) -> list[str]:
    rows = []
    for quantity, (median, worst) in GOALS.items():
        errors = [abs(pair.error) for pair in joined if pair.measured.quantity == quantity]
        goals = (("median", median, statistics.median), ("worst", worst, max)) if errors else ()
        for name, goal, of in goals:
            if goal is not None:
                rows.append((f"{name} error of {quantity}", f"{of(errors):.3%}", f"{goal:.1%}", _met(of(errors), goal)))
    return table(("", "found", "at most", ""), rows)


def _met(error: float, goal: float) -> str:
    return "reached" if error <= goal else "MISSED"


def _too_small(joined: Sequence[FigurePair]) -> list[str]:
    """What has to fit and was predicted too small, the worst first."""
    too_small = [pair for pair in joined if pair.error < 0 and pair.measured.quantity != Quantity.LIVE]
    too_small.sort(key=lambda pair: pair.error)
    rows = [
        (pair.measured.cell, pair.when or "all", pair.measured.quantity, show_error(pair.error, 3), *_sizes(pair))
        for pair in too_small[:_WORST_NAMED]
    ]
    head = ("cell", "phase", "quantity", "error", "predicted, B", "measured, B")
    return [f"## Predicted too small: {len(too_small)} figures", "", *(table(head, rows, texts=3) if rows else [])]


def _sizes(pair: FigurePair) -> tuple[str, str]:
    return f"{pair.predicted.bytes:,}", f"{pair.measured.bytes:,}"


def _fit_lines(predicted: Sequence[Figure], ran: Sequence[Trial]) -> list[str]:
    """Each cell that ran out of memory, or that was said not to fit, beside what its prediction says."""
    needed = {figure.config_hash: figure for figure in predicted if figure.quantity == NEEDED}
    rows = []
    for trial in ran:
        need, capacity = needed.get(trial.spec.config_hash), _capacity(trial)
        if need is None or capacity is None:
            continue
        fits, ran_out = need.bytes <= capacity, trial.record.status is Status.OUT_OF_DEVICE_MEMORY
        if fits and not ran_out:
            continue
        verdict = "MISSED: said to fit" if fits else "as predicted" if ran_out else "FALSE REFUSAL"
        rows.append((need.cell, str(trial.record.status), format_bytes(need.bytes), format_bytes(capacity), verdict))
    head = ("cell", "ended", "predicted need", "device", "verdict")
    title = "## Cells that do not fit, by prediction or by measurement"
    return [title, "", *(table(head, rows, texts=2) if rows else ["None.", ""])]


def _capacity(trial: Trial) -> int | None:
    """The device's memory as NVML saw it, or as CUDA hands it out of one that was emulated."""
    if trial.spec.prediction.gpu is not None:
        return known_gpu(trial.spec.prediction.gpu).capacity_bytes
    sizes = [device.total_bytes for node in trial.record.nvml for device in node.devices]
    return min((size for size in sizes if size is not None), default=None)
