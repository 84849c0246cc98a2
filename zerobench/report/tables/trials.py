"""All trials: what each took, how fast it was, and whether that was seen or predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from zerobench.estimate.clock.step import Interval
from zerobench.report.figures.notes import listed
from zerobench.report.figures.parity import Parity
from zerobench.report.figures.recovery import distance_text
from zerobench.report.figures.speed import Speed
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, figures_of, in_unit, lines_of, of_part
from zerobench.report.words.column_units import (
    MISSING,
    Unit,
    byte_unit,
    show_number,
    show_percent,
    show_whole,
    time_unit,
)


def trials_table(trials: Sequence[TrialFigures]) -> Table[TrialFigures]:
    """A row for each trial."""
    lines = lines_of(trials, lambda trial: [trial])
    time = time_unit(trial.speed.step_time_s_median for trial in trials if trial.speed)
    ended = _text("ended", lambda trial: trial.status.words)
    columns: list[Column[TrialFigures]] = [
        *([] if all(trial.is_completed for trial in trials) else [ended]),
        Column("ranks", lambda trial: show_whole(trial.spec.world_size)),
        _bytes("device peak", lambda trial: trial.device_peak_bytes, trials),
        Column("of capacity", lambda trial: show_percent(trial.share_of_capacity), "%"),
        _bytes("device need", lambda trial: trial.device_needed_bytes, trials),
        _text("fits", lambda trial: trial.fit.verdict),
        _bytes("NVML peak", lambda trial: trial.nvml_peak_bytes, trials),
        _bytes("host peak", lambda trial: trial.host_peak_bytes, trials),
        _speed("step", lambda speed: time.show(speed.step_time_s_median), time.name),
        _speed("tokens/s", lambda speed: show_whole(speed.tokens_per_s)),
        *_expected(trials),
        _speed("TFLOP/s per GPU", lambda speed: show_number(speed.tflops_per_gpu)),
        _speed("MFU", lambda speed: show_percent(speed.mfu), "%"),
        _parity("loss off", lambda parity: parity.difference),
        _parity("gradient norm off", lambda parity: parity.norm_difference),
        _text("nodes", lambda trial: listed(trial.nodes)),
        _text("Slurm job", lambda trial: trial.job or ""),
        Column("notes", lambda trial: "; ".join(short for short, _ in _doubts(trial)), is_text=True),
    ]
    return Table("Trials", _caption(figures_of(lines)), columns, lines)


def _text(name: str, cell: Callable[[TrialFigures], str]) -> Column[TrialFigures]:
    return Column(name, cell, is_text=True)


def _speed(name: str, show: Callable[[Speed], str], unit: str = "") -> Column[TrialFigures]:
    return Column(name, of_part(lambda trial: trial.speed, show), unit)


def _expected(trials: Sequence[TrialFigures]) -> list[Column[TrialFigures]]:
    """Columns of a predicted step's expected time; measured trials leave them empty."""
    steps = [trial.expected for trial in trials]
    unit = time_unit(interval.step_s for interval in steps if interval)

    def cell(show: Callable[[TrialFigures, Interval], str]) -> Callable[[TrialFigures], str]:
        return lambda trial: show(trial, interval) if (interval := trial.expected) else MISSING

    return [
        Column("expected step", cell(lambda _, interval: unit.show(interval.step_s)), unit.name),
        Column(
            "low to high",
            cell(lambda _, interval: f"{unit.show(interval.low_s)} to {unit.show(interval.high_s)}"),
            unit.name,
        ),
        Column(
            "expected tokens/s",
            cell(lambda trial, interval: show_whole(trial.spec.global_batch_tokens / interval.step_s)),
        ),
    ]


def _parity(name: str, value: Callable[[Parity], float | None]) -> Column[TrialFigures]:
    return Column(name, of_part(lambda trial: trial.parity, lambda parity: distance_text(value(parity))))


def _bytes(
    name: str, value: Callable[[TrialFigures], int | None], trials: Sequence[TrialFigures]
) -> Column[TrialFigures]:
    unit = _fine_enough([value(trial) for trial in trials])
    return Column(name, in_unit(unit, value), unit.name)


def _fine_enough(values: Sequence[int | None]) -> Unit:
    """The unit of a column, with the decimals that leave its small values two digits; what is tiny may vanish."""
    unit = byte_unit(values)
    smallest = min((value / unit.size for value in values if value and value > unit.size / 100), default=1.0)
    needed = next((decimals for decimals in range(unit.decimals, 3) if smallest * 10**decimals >= 10), 3)
    return unit if unit.name == "B" else replace(unit, decimals=needed)


def _caption(trials: Sequence[TrialFigures]) -> str:
    """Caption that explains the columns."""
    sentences = [
        "All trials, in sweep order.",
        "Peaks: largest rank, including start-up; host: per rank.",
        "NVML's peak includes other processes." if any(trial.nvml_peak_bytes for trial in trials) else "",
        "Off: largest difference from the reference (gradient norms: relative)."
        if any(trial.parity is not None for trial in trials)
        else "",
        "All measured." if all(trial.is_measured for trial in trials) else "Italics: predicted, not measured.",
    ]
    return " ".join(filter(None, sentences))


def remarks(trials: Sequence[TrialFigures]) -> list[tuple[str, str]]:
    """The trials whose rows are not simply to be believed, each with what speaks against it."""
    return [(trial.label, "; ".join(words for _, words in doubts)) for trial in trials if (doubts := _doubts(trial))]


def _doubts(trial: TrialFigures) -> list[tuple[str, str]]:
    """Doubts about a trial's figures, in two words and in full."""
    doubts = []
    for name, far, _ in trial.parity.disagreements if trial.parity else ():
        difference = f"{name} differ from the reference by {far:.2g}"
        doubts.append((f"{name} differ", f"{difference}, beyond rounding: figures invalid"))
    if trial.void:
        doubts.append(("speed void", f"speed void: {trial.void}"))
    return doubts
