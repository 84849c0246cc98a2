"""A plan as plain values: what frames of notebooks and `zerobench plan --json` have of each configuration."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zerobench.common.vocabulary import StepKind
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.training import Training
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.trials import refuse_impossible_values
from zerobench.report.documents.view import read_plan
from zerobench.report.explain.decided import Decided
from zerobench.report.explain.decision import Decision
from zerobench.report.figures.software import releases
from zerobench.report.figures.training_cost import takes
from zerobench.report.figures.trial import TrialFigures

VALUES: Mapping[str, Callable[[TrialFigures], Any]] = {
    "configuration": lambda row: row.label,
    "fits": lambda row: row.fits,
    "needed_bytes": lambda row: row.device.needed_bytes,
    "capacity_bytes": lambda row: row.device.capacity_bytes,
    "host_needed_bytes": lambda row: row.host.needed_bytes,
    "expected_step_s": lambda row: row.expected and row.expected.step_s,
    "expected_step_low_s": lambda row: row.expected and row.expected.low_s,
    "expected_step_high_s": lambda row: row.expected and row.expected.high_s,
    "tokens_per_s": lambda row: row.expected_tokens_per_s,
    "expected_mfu": lambda row: row.expected_mfu,
    "step_bound_s": lambda row: row.least_step_s,
}
"""A configuration's name and figures: bytes, whether it fits, seconds and tokens/s; None where not known."""


def row_values(row: TrialFigures) -> dict[str, Any]:
    """VALUES of one configuration."""
    return {name: read(row) for name, read in VALUES.items()}


def configuration_values(row: TrialFigures, cluster: Cluster, training: Training | None) -> dict[str, Any]:
    """All that a document has of one configuration."""
    needs = {
        "start_up_needed_bytes": row.needs.get(StepKind.FIRST),
        "steady_needed_bytes": row.needs.get(StepKind.STEADY),
    }
    totals = {name: need and need.total_bytes for name, need in needs.items()}
    return {**row_values(row), **totals, **_training_values(row, cluster, training), "categories": categories_of(row)}


def _training_values(row: TrialFigures, cluster: Cluster, training: Training | None) -> dict[str, Any]:
    """Cost of the training, by field of TrainingCost, each `low`, `expected` and `high`; empty without one."""
    if training is None:
        return {}
    interval = takes(row, cluster.gpu, training)
    ends = dict(zip(("low", "expected", "high"), map(asdict, interval), strict=True)) if interval else None
    return {"training": ends}


def categories_of(row: TrialFigures) -> dict[str, int]:
    """Bytes at the peak of a steady step, by the ledger's names; empty where not known."""
    instant = row.steady_peak
    return {} if instant is None else {name.value: size for name, size in instant.categories.items() if size}


def decision_values(decision: Decision) -> dict[str, Any]:
    """The decision, as documents of plans and searches have it."""
    reason = None if decision.configuration is None else decision.reason
    return {"best": decision.configuration, "reason": reason, "runner_up": decision.runner_up}


def plan_document(
    path: Path, cluster: Cluster, made: Decided, decision: Decision, training: Training | None = None
) -> dict[str, Any]:
    """The plan of the run at `path`, with what a training takes.

    Raises UserError: `path` is no run, or one of its records is torn.
    """
    with refuse_impossible_values(path):
        shown, rows = read_plan(path, cluster)
        known = {row.spec.trial_id for row in rows}
        others = [trial.record for _, trial in shown if trial.spec.trial_id not in known]
        return {
            "run": str(path),
            **decision_values(decision),
            "ds_config": made.best and _config_of(path, made.best.spec),
            "configurations": [configuration_values(row, cluster, training) for row in rows],
            "versions": releases(row.trial for row in rows),
            "without_figures": [
                {"trial_id": record.trial_id, "status": record.status.value, "reason": record.reason}
                for record in others
            ],
        }


def _config_of(path: Path, spec: TrialSpec) -> str | None:
    """The file of a DeepSpeed configuration; None without one."""
    return None if spec.zero_stage is None else str(path / "trials" / spec.trial_id / "ds_config.json")
