"""Terminal table of pipelines: each stage beside the others, and its measured bubble beside the ideal one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from zerobench.report.column_units import MISSING, Unit, byte_unit, show_percent, show_whole, time_unit
from zerobench.report.pipeline import StageRow, stages
from zerobench.report.terminal.layout import Column, Section, Shown, table

HOW_TO_READ = (
    "One row a stage; bytes of a steady step on the device. in flight: micro-batches whose activations a stage keeps "
    "at once, at most (GPipe all, 1F1B those of the stages from it on). bubble: part of a step in which the rank "
    "neither computes nor updates, sending and receiving included; ideal: (p - 1) / (m + p - 1) of p stages that take "
    "equally long and m micro-batches (Huang et al. 2019; Narayanan et al. 2021). passed: sent and received in a step, "
    "beside the hidden states and their gradients by formula."
)


def pipeline_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """The stages of the trials that have some."""
    rows = [(one, stage) for one in shown for stage in stages(one.trial)]
    if rows:
        yield Section("Pipeline, stage by stage", HOW_TO_READ, table(_columns(rows), rows, width))


def _states(unit: Unit, name: str) -> Callable[[StageRow], str]:
    return lambda stage: MISSING if stage.states is None else unit.show(getattr(stage.states, name))


def _columns(shown: Sequence[tuple[Shown, StageRow]]) -> list[Column[StageRow]]:
    rows = [stage for _, stage in shown]
    held, moved = byte_unit(row.peak_bytes for row in rows), byte_unit(row.formula_bytes for row in rows)
    seconds = time_unit(row.step_s for row in rows if row.step_s is not None)
    return [
        Column("stage", "stage", lambda row: str(row.rank)),
        Column("blocks", None, lambda row: row.blocks or MISSING, is_text=True),
        Column("parameters", None, lambda row: show_whole(row.num_params)),
        Column(f"peak, {held.name}", held.name, lambda row: held.show(row.peak_bytes)),
        Column("param", None, _states(held, "parameters_bytes")),
        Column("grad", None, _states(held, "gradients_bytes")),
        Column("optim", None, _states(held, "optimizer_bytes")),
        Column("activ", "activ", lambda row: held.show(row.activations_bytes)),
        Column("in flight", "flight", lambda row: show_whole(row.in_flight)),
        Column(f"step, {seconds.name}", f"step {seconds.name}", lambda row: seconds.show(row.step_s)),
        Column("waiting", "wait", lambda row: seconds.show(row.wait_s)),
        Column("bubble", "bubble", lambda row: show_percent(row.bubble_fraction)),
        Column("ideal", "ideal", lambda row: show_percent(row.ideal_fraction)),
        Column(f"passed, {moved.name}", None, lambda row: moved.show(row.passed_bytes)),
        Column("by formula", None, lambda row: moved.show(row.formula_bytes)),
    ]
