"""Which trials the report doubts: by what their losses and gradient norms said, and never for want of a reference."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

from zerobench.report.frames import schema
from zerobench.report.frames.doubts import disagree, disagreeing, disagreements
from zerobench.report.frames.tidy_tables import to_pandas

CASES: dict[str, tuple[bool | None, bool | None]] = {
    "agrees": (True, True),
    "by its losses": (False, True),
    "by its norms": (True, False),
    "by both": (False, False),
    "nothing to compare with": (None, None),
    "by its losses, without norms": (False, None),
    "by its norms, without losses": (None, False),
    "agrees, without norms": (True, None),
}
"""By label, whether the losses and the norms of a trial hold; None where there is no reference."""


@pytest.fixture(scope="module")
def trials() -> pd.DataFrame:
    """A summary of these trials, each 0.25 from its reference in its losses and 0.5 in its norms."""
    rows = [
        {
            "label": label,
            "loss_parity_holds": losses,
            "norm_parity_holds": norms,
            "loss_parity": 0.25,
            "norm_parity": 0.5,
        }
        for label, (losses, norms) in CASES.items()
    ]
    return to_pandas(pa.Table.from_pylist(rows, schema=schema.arrow_schema(schema.SUMMARY)))


def test_a_trial_is_doubted_for_its_losses_or_its_norms_and_not_for_want_of_a_reference(trials: pd.DataFrame) -> None:
    found = dict(zip(trials["label"], disagree(trials), strict=True))
    assert found == {label: False in held for label, held in CASES.items()}


def test_the_doubted_are_told_by_what_disagrees_and_nothing_is_told_of_what_all_agree_in(trials: pd.DataFrame) -> None:
    assert disagreeing(trials) == {
        "losses": ["by its losses", "by both", "by its losses, without norms"],
        "gradient norms": ["by its norms", "by both", "by its norms, without losses"],
    }
    assert disagreeing(trials[trials["label"] == "by its norms"]) == {"gradient norms": ["by its norms"]}
    assert disagreeing(trials[trials["label"] == "nothing to compare with"]) == {}


def test_each_doubt_comes_with_its_own_distance(trials: pd.DataFrame) -> None:
    rows = {row["label"]: disagreements(row) for row in trials.to_dict("records")}
    assert rows["by both"] == [("losses", 0.25), ("gradient norms", 0.5)]
    assert rows["by its norms, without losses"] == [("gradient norms", 0.5)]
    assert rows["agrees"] == rows["nothing to compare with"] == []
