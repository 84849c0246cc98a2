"""The stages of pipelines: each beside the others, its measured bubble beside the ideal one."""

from collections.abc import Sequence

from zerobench.report.figures.pipeline import StageRow
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, figures_of, lines_of, unit_column
from zerobench.report.tables.model_states import states_columns
from zerobench.report.words.column_units import MISSING, byte_unit, show_percent, show_whole, time_unit

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
    columns: list[Column[StageRow]] = [
        Column("stage", lambda row: str(row.rank), narrow="stage"),
        Column("blocks", lambda row: row.blocks or MISSING, is_text=True),
        Column("parameters", lambda row: show_whole(row.num_params)),
        unit_column("peak", held, lambda row: row.peak_bytes, narrow=held.name),
        *states_columns(held, lambda row: row.states),
        unit_column("activations", held, lambda row: row.activations_bytes, wide="activ", narrow="activ"),
        Column("in flight", lambda row: show_whole(row.in_flight), narrow="flight"),
        unit_column("step", seconds, lambda row: row.step_s, narrow=f"step {seconds.name}"),
        unit_column("waiting", seconds, lambda row: row.wait_s, wide="waiting", narrow="wait"),
        Column("bubble", lambda row: show_percent(row.bubble_fraction), "%", wide="bubble", narrow="bubble"),
        Column("ideal", lambda row: show_percent(row.ideal_fraction), "%", wide="ideal", narrow="ideal"),
        unit_column("passed", moved, lambda row: row.passed_bytes),
        unit_column("by formula", moved, lambda row: row.formula_bytes, wide="by formula"),
    ]
    return Table(TITLE, HOW_TO_READ, columns, lines)
