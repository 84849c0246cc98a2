"""A plan as plain values: what frames of notebooks and `zerobench plan --json` have of each configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zerobench.report.plan.rows import PlanRow, recommended
from zerobench.report.plan.takes import takes
from zerobench.report.plan.view import read_plan
from zerobench.report.trials import refusing_impossible_values
from zerobench.spec.cluster import Cluster
from zerobench.spec.training import Training

VALUES: Mapping[str, Callable[[PlanRow], Any]] = {
    "configuration": lambda row: row.shown.label,
    "fits": lambda row: row.fits,
    "needed_bytes": lambda row: row.device.needed_bytes,
    "capacity_bytes": lambda row: row.device.capacity_bytes,
    "host_needed_bytes": lambda row: row.host.needed_bytes,
    "expected_step_s": lambda row: row.expected and row.expected.step_s,
    "expected_step_low_s": lambda row: row.expected and row.expected.low_s,
    "expected_step_high_s": lambda row: row.expected and row.expected.high_s,
    "tokens_per_s": lambda row: row.expected_tokens_per_s,
    "expected_mfu": lambda row: row.expected_mfu,
    "step_bound_s": lambda row: row.step_s,
}
"""A configuration's name and figures: bytes, whether it fits, seconds and tokens/s; None where not known."""


def row_values(row: PlanRow) -> dict[str, Any]:
    """VALUES of one configuration."""
    return {name: read(row) for name, read in VALUES.items()}


def configuration_values(row: PlanRow, cluster: Cluster, training: Training | None) -> dict[str, Any]:
    """All that a document has of one configuration."""
    return {**row_values(row), **_training_values(row, cluster, training), "categories": categories_of(row)}


def _training_values(row: PlanRow, cluster: Cluster, training: Training | None) -> dict[str, Any]:
    """What the training takes, by field of TrainingCost, each `low`, `expected` and `high`; empty without one."""
    if training is None:
        return {}
    interval = takes(row, cluster.gpu, training)
    ends = dict(zip(("low", "expected", "high"), map(asdict, interval), strict=True)) if interval else None
    return {"training": ends}


def categories_of(row: PlanRow) -> dict[str, int]:
    """Bytes at the peak of a steady step, by the ledger's names; empty where not known."""
    instant = row.steady
    return {} if instant is None else {name.value: size for name, size in instant.categories.items() if size}


def plan_document(path: Path, cluster: Cluster, training: Training | None = None) -> dict[str, Any]:
    """The plan of the run at `path`, with what a training takes.

    Raises UserError: `path` is no run, or one of its records is torn.
    """
    with refusing_impossible_values(path):
        shown, rows = read_plan(path, cluster)
        choice = recommended(rows)
        return {
            "run": str(path),
            "best": None if choice is None else choice.best.shown.label,
            "reason": None if choice is None else choice.reason,
            "ds_config": _config_of(path, None if choice is None else choice.best),
            "configurations": [configuration_values(row, cluster, training) for row in rows],
            "without_figures": [
                {"trial_id": trial.record.trial_id, "status": trial.record.status.value, "reason": trial.record.reason}
                for trial in _others([labelled.trial for labelled in shown], rows)
            ],
        }


def _others(trials: Sequence[Any], rows: Sequence[PlanRow]) -> list[Any]:
    known = {row.trial.spec.trial_id for row in rows}
    return [trial for trial in trials if trial.spec.trial_id not in known]


def _config_of(path: Path, best: PlanRow | None) -> str | None:
    """The file of the recommended DeepSpeed configuration; None without one."""
    if best is None or best.trial.spec.zero_stage is None:
        return None
    return str(path / "trials" / best.trial.spec.trial_id / "ds_config.json")
