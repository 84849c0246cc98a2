"""The tidy tables of several runs as one CSV each: what a run's folder holds of one run, joined, and the pages' frames.

The ledger's table passes through trial by trial, as it does when a run writes its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from zerobench.folder import replacing
from zerobench.report.frames import schema
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.frames.sinks import table_files
from zerobench.report.frames.tidy_tables import memory_tables, to_pandas
from zerobench.report.strategies.rows import ComparedSide


def write_csv(frames: RunFrames, folder: Path) -> list[Path]:
    """Write the tables of all runs of `frames` into `folder`, over older ones; the files.

    `memory`, `trials` and `errors` have the columns of a run's own files of those names; `peaks`, `ranks`, `phases`,
    `steps` and `compared` those of schema.py. What is not available is empty.

    Raises:
        UserError: a record is torn, corrupt, newer than this version, or holds an impossible value.

    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "trials": frames.trials,
        "errors": frames.errors,
        "peaks": frames.peaks,
        "ranks": frames.ranks,
        "phases": frames.phases,
        "steps": frames.steps,
        "compared": strategies_frame(frames.comparison),
    }
    memory = folder / "memory.csv"
    _write_memory(frames, memory)
    return [memory, *(_write(folder / f"{name}.csv", frame) for name, frame in tables.items())]


def _write_memory(frames: RunFrames, path: Path) -> None:
    with table_files(schema.MEMORY, path) as sink:
        for run in frames.runs:
            for table in memory_tables(run.trials()):
                sink.add(table)


def _write(path: Path, frame: pd.DataFrame) -> Path:
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False, lineterminator="\n")
    return path


def strategies_frame(rows: Sequence[ComparedSide]) -> pd.DataFrame:
    """The rows in their order, with the dtypes that schema.py states."""
    table = pa.Table.from_pylist([_values(row) for row in rows], schema=schema.arrow_schema(schema.COMPARED))
    return to_pandas(table)


def _values(row: ComparedSide) -> dict[str, Any]:
    figures, states = row.figures, row.figures.states
    return {
        "run_id": figures.run_id,
        "trial_id": figures.trial_id,
        "label": row.label,
        "strategy": row.spec.strategy,
        "world_size": row.spec.world_size,
        "role": figures.role,
        "num_ranks": figures.num_ranks,
        "losses": None if figures.is_server else row.verdict,
        "loss_difference": None if figures.is_server else row.parity and row.parity.difference,
        "norm_difference": None if figures.is_server else row.parity and row.parity.norm_difference,
        "step_time_s_median": figures.step_s,
        "step_time_s_spread": figures.spread_s,
        "tokens_per_s": figures.tokens_per_s,
        "speed_up": row.speed_up,
        "efficiency": row.efficiency,
        "weak_efficiency": row.weak_efficiency,
        "sent_bytes": figures.sent_bytes,
        "received_bytes": figures.received_bytes,
        "formula_sent_bytes": figures.formula_sent_bytes,
        "formula_received_bytes": figures.formula_received_bytes,
        "parameters_bytes": states and states.parameters_bytes,
        "gradients_bytes": states and states.gradients_bytes,
        "optimizer_bytes": states and states.optimizer_bytes,
        "saved_fraction": row.saved_fraction,
        "peak_bytes": figures.peak_bytes,
        "in_flight_fraction": figures.in_flight_fraction,
        "exposed_fraction": figures.exposed_fraction,
        "wait_fraction": figures.wait_fraction,
        "mean_staleness": figures.staleness,
    }
