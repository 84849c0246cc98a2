"""The tidy tables of several runs as one CSV each: what a run's folder holds of one run, joined, and the pages' frames.

The ledger's table passes through trial by trial, as it does when a run writes its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from zerobench.common.temporary_files import replacing
from zerobench.report.export import schema
from zerobench.report.export.run_frames import RunFrames
from zerobench.report.export.sinks import table_files
from zerobench.report.export.tidy_tables import memory_tables, to_pandas
from zerobench.report.figures.strategies.rows import ComparedSide
from zerobench.report.words.cells import as_cell, quoting_of


def write_csv(frames: RunFrames, folder: Path) -> list[Path]:
    """Write the tables of all runs of `frames` into `folder`, over older ones; the files.

    `memory`, `trials` and `errors` have the columns of a run's own files of those names; `peaks`, `ranks`, `phases`,
    `steps` and `compared` those of schema.py. What is not available is empty.

    Raises:
        UserError: a record is torn, corrupt, newer than this version, or holds an impossible value.

    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {name: getattr(frames, name) for name in ("trials", "errors", "peaks", "ranks", "phases", "steps")}
    tables["compared"] = strategies_frame(frames.comparison)
    with table_files(schema.MEMORY, folder / "memory.csv") as sink:
        for table in memory_tables(trial for run in frames.runs for trial in run.trials()):
            sink.add(table)
    for name, frame in tables.items():
        with replacing(folder / f"{name}.csv") as temporary:
            quoting = quoting_of(frame.to_numpy(dtype=object).flat)
            frame.map(as_cell).to_csv(temporary, index=False, lineterminator="\n", quoting=quoting)
    return [folder / f"{name}.csv" for name in ("memory", *tables)]


def strategies_frame(rows: Sequence[ComparedSide]) -> pd.DataFrame:
    """The rows in their order, with the dtypes that schema.py states."""
    table = pa.Table.from_pylist([_values(row) for row in rows], schema=schema.arrow_schema(schema.COMPARED))
    return to_pandas(table)


def _values(row: ComparedSide) -> dict[str, Any]:
    """Values of the row, its figures, its trial or its model states by a column's own name, then the other columns; a
    server computes no loss.
    """
    figures, parity = row.figures, None if row.figures.is_server else row.parity
    holders = (figures.states, row.spec, row.trial, figures, row)
    named = {name: getattr(holder, name) for holder in holders for name in schema.COMPARED if hasattr(holder, name)}
    return named | {
        "losses": None if figures.is_server else row.verdict,
        "loss_difference": parity and parity.difference,
        "norm_difference": parity and parity.norm_difference,
        "step_time_s_median": figures.step_s,
        "step_time_s_spread": figures.spread_s,
        "mean_staleness": figures.staleness,
    }
