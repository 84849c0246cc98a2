"""The tidy tables of several runs as one CSV each: what a run's folder holds of one run, joined, and the pages' frames.

The ledger's table passes through trial by trial, as it does when a run writes its own.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from zerobench.folder import replacing
from zerobench.report.frames import schema
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.frames.sinks import table_files
from zerobench.report.frames.strategies_frame import strategies_frame
from zerobench.report.frames.tidy_tables import memory_tables


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
