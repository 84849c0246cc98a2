"""Which trials of the summary (schema.SUMMARY) do not compute what their reference computes, and in which figures.

Empty is no doubt: there was nothing to compare with, or the trial changes the arithmetic by design.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_HELD = {
    "loss_parity_holds": ("losses", "loss_parity"),
    "norm_parity_holds": ("gradient norms", "norm_parity"),
}


def disagree(trials: pd.DataFrame) -> pd.Series[bool]:
    """Of each trial, whether its losses or the norms of its gradients speak against it."""
    held = [trials[column].fillna(value=True).astype(bool) for column in _HELD]
    return ~(held[0] & held[1])


def disagreeing(trials: pd.DataFrame) -> dict[str, list[str]]:
    """Labels of the trials that disagree, by what does."""
    wrong = {name: trials[trials[column].eq(other=False).fillna(value=False)] for column, (name, _) in _HELD.items()}
    return {name: list(rows["label"]) for name, rows in wrong.items() if len(rows)}


def disagreements(trial: Mapping[Any, Any]) -> list[tuple[str, float]]:
    """Of one row, what speaks against it, and by how much: `losses`, `gradient norms`."""
    return [(name, trial[far]) for column, (name, far) in _HELD.items() if trial[column] is False]
