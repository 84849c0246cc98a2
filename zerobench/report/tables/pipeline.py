"""The stages of pipelines: each beside the others, its measured bubble beside the ideal one."""

from collections.abc import Sequence

from zerobench.report.column_units import MISSING, byte_unit, show_percent, show_whole, time_unit
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.pipeline import StageRow
from zerobench.report.tables.model import Column, Table, figures_of, in_unit, lines_of
from zerobench.report.tables.model_states import states_columns

TITLE = "Pipeline stages"
HOW_TO_READ = (
    "One row per stage; device memory of a steady step. in flight: most micro-batches whose activations "
    "a stage holds at once (GPipe: all; 1F1B: number of stages from it on). bubble: share of a step in "
    "which the rank neither computes nor updates, including send and receive; ideal: (p - 1) / (m + p - "
    "1) for p equal stages and m micro-batches (Huang et al. 2019; Narayanan et al. 2021). passed: sent "
    "and received per step, beside hidden states and their gradients by formula."
)


def pipeline_table(trials: Sequence[TrialFigures]) -> Table[StageRow]:
    """A row for each stage."""
    lines = lines_of(trials, lambda trial: trial.stages)
    rows = figures_of(lines)
    held, moved = byte_unit(row.peak_bytes for row in rows), byte_unit(row.formula_bytes for row in rows)
    seconds = time_unit(row.step_s for row in rows)
    columns = [
        Column[StageRow]("stage", lambda row: str(row.rank), narrow="stage"),
        Column[StageRow]("blocks", lambda row: row.blocks or MISSING, is_text=True),
        Column[StageRow]("parameters", lambda row: show_whole(row.num_params)),
        Column[StageRow]("peak", in_unit(held, lambda row: row.peak_bytes), held.name, narrow=held.name),
        *states_columns(held, lambda row: row.states),
        Column[StageRow](
            "activations", in_unit(held, lambda row: row.activations_bytes), held.name, wide="activ", narrow="activ"
        ),
        Column[StageRow]("in flight", lambda row: show_whole(row.in_flight), narrow="flight"),
        Column[StageRow]("step", in_unit(seconds, lambda row: row.step_s), seconds.name, narrow=f"step {seconds.name}"),
        Column[StageRow](
            "waiting", in_unit(seconds, lambda row: row.wait_s), seconds.name, wide="waiting", narrow="wait"
        ),
        Column[StageRow]("bubble", lambda row: show_percent(row.bubble_fraction), "%", wide="bubble", narrow="bubble"),
        Column[StageRow]("ideal", lambda row: show_percent(row.ideal_fraction), "%", wide="ideal", narrow="ideal"),
        Column[StageRow]("passed", in_unit(moved, lambda row: row.passed_bytes), moved.name),
        Column[StageRow]("by formula", in_unit(moved, lambda row: row.formula_bytes), moved.name, wide="by formula"),
    ]
    return Table(TITLE, HOW_TO_READ, columns, lines)
