"""Terminal table of speed: step time and its spread, throughput, and where the step's time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from zerobench.report.column_units import MISSING, Unit, plain, show_number, show_percent, show_whole, time_unit
from zerobench.report.speed import Speed, speed_of, step_seconds_by_rank, timed_tokens
from zerobench.report.stats import RankSpread, median_absolute_deviation, median_interval, spread_over_ranks
from zerobench.report.terminal.layout import Column, Section, Shown, mark, table
from zerobench.report.terminal.memory_tables import odd_rank
from zerobench.report.trials import all_ranks_ran


@dataclass(frozen=True)
class _Row:
    speed: Speed
    over_ranks: RankSpread | None
    joules_per_token: float | None

    @classmethod
    def of(cls, shown: Shown, energies: Mapping[str, float]) -> _Row | None:
        speed, trial = speed_of(shown.trial), shown.trial
        if speed is None:
            return None
        tokens = sum(timed_tokens(trial))
        joules = energies.get(trial.spec.trial_id) if all_ranks_ran(trial) else None
        spread = spread_over_ranks(step_seconds_by_rank(trial))
        return cls(speed, spread, None if joules is None else joules / tokens)

    @property
    def seconds(self) -> list[float]:
        return [step.step_s for step in self.speed.steps]


def speed_sections(shown: Sequence[Shown], energies: Mapping[str, float], width: int) -> Iterator[Section]:
    """The speed of the trials that timed steps; `energies` are the joules of their timed steps by trial_id."""
    rows = [(one, row) for one in shown if (row := _Row.of(one, energies)) is not None]
    if rows:
        yield _speed(rows, width)


def _seconds(unit: Unit, name: str) -> Callable[[_Row], str]:
    return lambda row: unit.show(getattr(row.speed, name))


def _interval(unit: Unit) -> Callable[[_Row], str]:
    def cell(row: _Row) -> str:
        bounds = median_interval(row.seconds)
        return MISSING if bounds is None else f"{unit.show(bounds[0])}-{unit.show(bounds[1])}"

    return cell


def _unless_void(show: Callable[[Speed], str]) -> Callable[[_Row], str]:
    return lambda row: "void" if row.speed.void else show(row.speed)


def _speed(rows: list[tuple[Shown, _Row]], width: int) -> Section:
    unit = time_unit(row.speed.step_time_s_median for _, row in rows)
    columns = [
        Column("step", "step", _seconds(unit, "step_time_s_median")),
        Column[_Row]("+-", "+-", lambda row: unit.show(median_absolute_deviation(row.seconds))),
        Column("95% interval", None, _interval(unit)),
        Column("forward", "fwd", _seconds(unit, "forward_s")),
        Column("backward", "bwd", _seconds(unit, "backward_s")),
        Column("update", "update", _seconds(unit, "step_s")),
        Column[_Row]("odd rank", None, lambda row: odd_rank(row.over_ranks)),
        Column[_Row]("J/token", None, lambda row: show_number(row.joules_per_token)),
        Column("samples/s", None, _unless_void(lambda speed: show_number(speed.samples_per_s))),
        Column("tokens/s", "tokens/s", _unless_void(lambda speed: show_whole(speed.tokens_per_s))),
        Column("TFLOP/s per GPU", "TFLOP/s", _unless_void(lambda speed: show_number(speed.tflops_per_gpu))),
        Column("MFU %", "MFU %", _unless_void(lambda speed: show_percent(speed.mfu))),
    ]
    return Section(
        f"Speed, {unit.name} a step",
        "Medians over the timed steps, the slowest rank of each; +-: half of the steps lie within it. tokens/s: all "
        "ranks. TFLOP/s: model FLOPs of one GPU. MFU: that over the GPU's peak.",
        table(columns, rows, width),
        [*_voids(rows), *_alone(rows), *_sources(rows)],
    )


def _voids(rows: Sequence[tuple[Shown, _Row]]) -> list[Text]:
    return [mark(f"{one.label}: throughput is void: {row.speed.void}") for one, row in rows if row.speed.void]


def _alone(rows: Sequence[tuple[Shown, _Row]]) -> list[Text]:
    """Solo steps wait for nobody: said where they stand among others."""
    if all(all_ranks_ran(one.trial) for one, _ in rows):
        return []
    return [Text("Where tokens/s is missing one rank ran alone: compute time without communication.", style="dim")]


def _sources(rows: Sequence[tuple[Shown, _Row]]) -> list[Text]:
    """The formula of the FLOPs and the peak that MFU divides by."""
    formulas = dict.fromkeys(rank.flops_formula for one, _ in rows for rank in one.trial.ranks if rank.flops_formula)
    peaks = dict.fromkeys(
        f"{one.trial.ranks[0].device_name} {one.trial.spec.precision.value}: "
        f"{(row.speed.peak_flops or 0) / 1e12:.0f} TFLOP/s ({row.speed.peak_source})"
        for one, row in rows
        if row.speed.peak_source
    )
    lines = [f"FLOPs: {formula}" for formula in formulas] + [f"Peak: {peak}" for peak in peaks]
    return [Text(plain(line), style="dim") for line in lines]
