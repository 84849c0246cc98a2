"""Speed: step time and its spread, throughput, where the step's time goes, and how far the losses lie from others'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerobench.report.figures.speed import Speed
from zerobench.report.figures.stats import RankSpread, median_absolute_deviation, median_interval, spread_over_ranks
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.memory import odd_rank
from zerobench.report.tables.model import Column, Line, Mark, Table, figures_of, in_unit, lines_of
from zerobench.report.words.column_units import MISSING, Unit, show_number, show_percent, show_whole, time_unit

TITLE = "Throughput"


@dataclass(frozen=True)
class SpeedRow:
    """The speed of one trial that timed steps."""

    trial: TrialFigures
    speed: Speed
    rank_spreads: RankSpread | None
    joules_per_token: float | None


def speed_table(trials: Sequence[TrialFigures], energies: Mapping[str, float] = {}) -> Table[SpeedRow]:
    """A row for each trial that timed steps; `energies` are the joules of their timed steps by trial_id."""
    lines = lines_of(trials, lambda trial: _rows(trial, energies))
    unit = time_unit(row.speed.step_time_s_median for row in figures_of(lines))
    columns: list[Column[SpeedRow]] = [
        _seconds("step", unit, lambda speed: speed.step_time_s_median, "step"),
        Column("+-", in_unit(unit, lambda row: median_absolute_deviation(row.trial.timed_s)), unit.name, "+-", "+-"),
        Column("95% interval", _interval(unit), unit.name, "95% interval"),
        _seconds("forward", unit, lambda speed: speed.forward_s, "fwd"),
        _seconds("backward", unit, lambda speed: speed.backward_s, "bwd"),
        _seconds("update", unit, lambda speed: speed.step_s, "update"),
        Column("outlier rank", lambda row: odd_rank(row.rank_spreads)),
        Column("J/token", lambda row: show_number(row.joules_per_token)),
        Column("samples/s", _unless_void(lambda speed: show_number(speed.samples_per_s))),
        Column("tokens/s", _unless_void(lambda speed: show_whole(speed.tokens_per_s)), narrow="tokens/s"),
        Column("TFLOP/s per GPU", _unless_void(lambda speed: show_number(speed.tflops_per_gpu)), narrow="TFLOP/s"),
        Column("MFU", _unless_void(lambda speed: show_percent(speed.mfu)), "%", "MFU %", "MFU %"),
    ]
    return Table(
        TITLE,
        (
            "Medians over the timed steps, slowest rank of each; +-: half of the steps are within it. "
            "tokens/s: all ranks. TFLOP/s: model FLOP/s per GPU. MFU: TFLOP/s over the GPU's peak."
        ),
        columns,
        lines,
        [*_voids(lines), *_alone(lines), *_sources(lines)],
        heading=f"Speed, {unit.name} per step",
    )


def _rows(trial: TrialFigures, energies: Mapping[str, float]) -> Iterator[SpeedRow]:
    if trial.speed is not None:
        by_rank = {rank.rank: rank.step_time_s_median for rank in trial.ranks}
        spread = spread_over_ranks({rank: seconds for rank, seconds in by_rank.items() if seconds is not None})
        joules = None if trial.is_alone else energies.get(trial.trial_id)
        yield SpeedRow(trial, trial.speed, spread, None if joules is None else joules / trial.timed_tokens)


def _seconds(name: str, unit: Unit, value: Callable[[Speed], float | None], narrow: str) -> Column[SpeedRow]:
    return Column(name, lambda row: unit.show(value(row.speed)), unit.name, name, narrow)


def _interval(unit: Unit) -> Callable[[SpeedRow], str]:
    def cell(row: SpeedRow) -> str:
        bounds = median_interval(row.trial.timed_s)
        return MISSING if bounds is None else f"{unit.show(bounds[0])}-{unit.show(bounds[1])}"

    return cell


def _unless_void(show: Callable[[Speed], str]) -> Callable[[SpeedRow], str]:
    return lambda row: "void" if row.speed.void else show(row.speed)


def _voids(lines: Sequence[Line[SpeedRow]]) -> list[Mark]:
    voids = ((line.trial.label, line.figures.speed.void) for line in lines)
    return [Mark(f"{label}: throughput is void: {void}") for label, void in voids if void]


def _alone(lines: Sequence[Line[SpeedRow]]) -> list[str]:
    """Solo steps wait for nobody: said where they stand among others."""
    if not any(line.figures.trial.is_alone for line in lines):
        return []
    return ["No tokens/s: one rank alone, compute time without communication."]


def _sources(lines: Sequence[Line[SpeedRow]]) -> list[str]:
    """The formula of the FLOPs and the peak that MFU divides by."""
    rows = figures_of(lines)
    formulas = dict.fromkeys(formula for row in rows for formula in row.trial.flops_formulas)
    peaks = dict.fromkeys(
        f"{row.trial.device_name} {row.trial.spec.precision.value}: "
        f"{(row.speed.peak_flops or 0) / 1e12:.0f} TFLOP/s ({row.speed.peak_source})"
        for row in rows
        if row.speed.peak_source
    )
    return [f"FLOPs: {formula}" for formula in formulas] + [f"Peak: {peak}" for peak in peaks]
