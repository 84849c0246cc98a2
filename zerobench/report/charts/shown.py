"""Which trials a chart shows and how it calls them: the columns that all charts add to the frame of trials."""

from __future__ import annotations

import pandas as pd

from zerobench.report.frames.doubts import disagree

KEY = ["run_id", "trial_id"]

MOST_ROWS = 30
"""Trials in a chart with a row for each: what a person can read."""


def prepared(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials in their order, with columns for charts.

    `position`; `name`: the label, `! ` before it where losses or gradients disagree, so that its memory is not
    believed; `is_measured`: all ranks ran, as far as `evidence` says; `offload`: the farthest place that a state is
    offloaded to.
    """
    found = trials.reset_index(drop=True).copy()
    found["position"] = range(len(found))
    doubted = disagree(found)
    found["is_believed"] = ~doubted
    found["name"] = found["label"].astype(str).where(~doubted, "! " + found["label"].astype(str))
    found["is_measured"] = (found["evidence"] == "measured").astype(bool)
    found["offload"] = [
        next((place for place in ("nvme", "cpu") if place in pair), "none")
        for pair in zip(*(found[name].fillna("none") for name in ("offload_optimizer", "offload_param")), strict=True)
    ]
    return found


def completed(trials: pd.DataFrame) -> pd.DataFrame:
    """Of the prepared trials those that ran to their end."""
    return trials[(trials["status"] == "completed").astype(bool)]


def most_telling(trials: pd.DataFrame, size_bytes: pd.Series[float], most: int = MOST_ROWS) -> pd.DataFrame:
    """At most `most` of the prepared trials, in their order: of each strategy and offload in turn the largest left.

    `size_bytes` has the index of `trials`. Every stage and offload is thus seen before one is seen twice, and of those
    that are equal in both and in size one is enough.
    """
    if len(trials) <= most:
        return trials
    cells = ["strategy", "offload_optimizer", "offload_param", "evidence"]
    sized = trials.assign(size=size_bytes.astype(float)).drop_duplicates([*cells, "size"])
    ranked = sized.sort_values("size", ascending=False, kind="stable")
    ranked["turn"] = ranked.groupby(cells, sort=False, dropna=False).cumcount()
    chosen = ranked.sort_values(["turn", "size"], ascending=[True, False], kind="stable").head(most)
    return trials.loc[chosen.sort_values("position").index]


def shown_sentence(shown: int, known: int) -> str:
    """What a caption says of trials that are left out; empty where none are."""
    if shown >= known:
        return ""
    return f" Of {known:,} trials {shown} are drawn: of each stage and offload in turn the largest, equal ones once."


def evidence_sentence(trials: pd.DataFrame) -> str:
    """How a caption says which of `trials` are measured."""
    measured = trials["is_measured"]
    if measured.all():
        return ""
    kinds = ", ".join(sorted(set(trials.loc[~measured, "evidence"].astype(str))))
    if not measured.any():
        return f" All are predicted ({kinds}), not measured."
    return f" Hatched or hollow: predicted ({kinds}), not measured."


def doubt_sentence(trials: pd.DataFrame) -> str:
    """How a caption explains the mark of trials that are not believed."""
    return "" if trials["is_believed"].all() else " `!`: losses or gradient norms leave those of the reference."
