"""A plan's rows as a frame of numbers, for notebooks and scripts."""

from collections.abc import Sequence

import pandas as pd

from zerobench.report.documents.document import VALUES, row_values
from zerobench.report.figures.trial import TrialFigures

_TYPES = {
    name: "Int64" if name.endswith("_bytes") else "Float64" for name in VALUES if name not in {"configuration", "fits"}
}
"""Types of the figures, also of a column in which none is known."""

Frame = pd.DataFrame
"""For those who name what they hand on without importing pandas."""


def plan_frame(rows: Sequence[TrialFigures]) -> pd.DataFrame:
    """A row for each configuration, by its name: bytes, whether it fits, seconds and tokens/s; None where not known."""
    figures = pd.DataFrame([row_values(row) for row in rows], columns=list(VALUES))
    return figures.set_index("configuration").convert_dtypes().astype(_TYPES)
