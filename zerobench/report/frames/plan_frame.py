"""A plan's rows as a frame of numbers, for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from zerobench.report.plan.rows import PlanRow

Frame = pd.DataFrame
"""For those who name what they hand on without importing pandas."""


def plan_frame(rows: Sequence[PlanRow]) -> pd.DataFrame:
    """A row for each configuration, by its name: bytes, whether it fits, seconds and tokens/s; None where not known."""
    columns = {
        "configuration": [row.shown.label for row in rows],
        "fits": [row.fits for row in rows],
        "needed_bytes": [row.device.needed_bytes for row in rows],
        "capacity_bytes": [row.device.capacity_bytes for row in rows],
        "host_needed_bytes": [row.host.needed_bytes for row in rows],
        "expected_step_s": [row.expected and row.expected.step_s for row in rows],
        "expected_step_low_s": [row.expected and row.expected.low_s for row in rows],
        "expected_step_high_s": [row.expected and row.expected.high_s for row in rows],
        "tokens_per_s": [row.expected_tokens_per_s for row in rows],
        "step_bound_s": [row.step_s for row in rows],
    }
    return pd.DataFrame(columns).set_index("configuration").convert_dtypes()
