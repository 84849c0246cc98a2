"""The comparison of ways to train as a tidy table: schema.COMPARED."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from zerobench.report.frames import schema
from zerobench.report.frames.tidy_tables import to_pandas
from zerobench.report.strategies.rows import ComparedSide


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
