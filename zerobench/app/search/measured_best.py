"""The best few of a search measured on this machine: which of them is really the fastest, and how far off each was.

On CPU ranks, where the machine has no GPU, the order of the times is what is measured, and not the times: the search
predicted those of a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.app.search.measured import measured_document
from zerobench.app.search.searched import SearchOutcome, figures
from zerobench.common.errors import UserError
from zerobench.common.units import counted
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.rules.rules import find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.optimizers import Optimizer, deepspeeds_adamw
from zerobench.config.trial.trial import Evidence, Offload, PredictionSpec, StepsSpec, TrialSpec
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import run_sweep
from zerobench.records.store import load_run
from zerobench.records.trials import Trial, ended_trials
from zerobench.report.figures.speed import Speed, speed_of
from zerobench.report.figures.trial import TrialFigures

STEPS = StepsSpec(warmup=2, timed=5, memory=1)


@dataclass(frozen=True)
class MeasuredRow:
    """One of the best few, as it was predicted and what became of it."""

    row: TrialFigures
    trial: Trial | None
    """None where it cannot run here."""
    skipped: str | None = None

    @property
    def speed(self) -> Speed | None:
        """None where it did not complete."""
        return None if self.trial is None else speed_of(self.trial)

    @property
    def text(self) -> str:
        """`zero2 mb4: 0.52 s a step (0.48 s expected of the GPU), 7,900 tokens/s`."""
        name, speed, predicted = self.row.label, self.speed, self.row.expected
        if speed is None:
            record = None if self.trial is None else self.trial.record
            return f"{name}: {self.skipped or (record and record.reason) or 'not measured'}"
        expected = "" if predicted is None else f" ({predicted.step_s:.3g} s expected)"
        rate = "" if speed.tokens_per_s is None else f", {speed.tokens_per_s:,.0f} tokens/s"
        return f"{name}: {speed.step_time_s_median:.3g} s a step{expected}{rate}"

    @property
    def document(self) -> dict[str, Any]:
        """Request, expectation and measurement; seconds."""
        speed, record = self.speed, None if self.trial is None else self.trial.record
        return figures(self.row) | {
            "status": "skipped" if self.skipped else None if record is None else record.status.value,
            "reason": self.skipped or (None if record is None else record.reason),
            "step_s": None if speed is None else speed.step_time_s_median,
            "tokens_per_s": None if speed is None else speed.tokens_per_s,
        }


@dataclass(frozen=True)
class MeasuredBest:
    """All that were measured, in the order of what was expected of them."""

    run: Path
    device: str
    rows: Sequence[MeasuredRow]

    @property
    def best(self) -> TrialFigures | None:
        """The one whose steps were the shortest."""
        timed = [(row.speed.step_time_s_median, at) for at, row in enumerate(self.rows) if row.speed is not None]
        return self.rows[min(timed)[1]].row if timed else None

    @property
    def document(self) -> dict[str, Any]:
        """As JSON, beside what the search found."""
        return {"run": str(self.run), "device": self.device, "trials": [row.document for row in self.rows]}


def check_measurable(cluster: Cluster, machine: Machine) -> None:
    """Raises UserError where this machine cannot run the cluster's ranks."""
    if cluster.num_nodes > 1:
        raise UserError(f"--measure: the plan has {cluster.num_nodes} nodes; measuring takes this machine only")
    if machine.accelerator is Accelerator.CUDA and machine.num_gpus < cluster.num_gpus:
        raise UserError(f"--measure: the plan has {counted(cluster.num_gpus, 'GPU')}, this machine {machine.num_gpus}")


def measure_best(search: SearchOutcome, most: int, machine: Machine, reports: Path, observer: Observer) -> MeasuredBest:
    """Run the `most` of those tried that fit with room and are expected to be fastest.

    Raises UserError: none fits with room, or none can run here.
    """
    fitting = [row for cell in search.cells for row in cell.tried.values() if row.has_room and row.expected is not None]
    rows = sorted(fitting, key=lambda row: row.expected.step_s if row.expected else 0.0)[:most]
    return measure(rows, machine, reports, observer)


def measure(rows: Sequence[TrialFigures], machine: Machine, reports: Path, observer: Observer) -> MeasuredBest:
    """Run all of `rows`, in one run under `reports`. Raises UserError: none can run here."""
    planned = [_here(row.spec, machine) for row in rows]
    if all(item.skipped for item in planned):
        whys = [item.skipped.reason for item in planned if item.skipped] or ["none of the variants fits with room"]
        raise UserError(f"--measure: {whys[0]}")
    result = run_sweep(
        planned,
        measured_document(f"measured-{planned[0].trial.model.name}", planned),
        environment=capture_environment(),
        reports=reports,
        executor=LocalExecutor(machine.cpu_cores, machine.num_gpus, None),
        observer=observer,
    )
    there = {trial.trial_id: trial for trial in ended_trials(load_run(result.whole().path))}
    measured = [
        MeasuredRow(row, there.get(item.trial.trial_id), item.skipped.reason if item.skipped else None)
        for row, item in zip(rows, planned, strict=True)
    ]
    ranks = planned[0].trial.world_size
    device = ", ".join(dict.fromkeys(machine.gpu_names)) or "CPU"
    return MeasuredBest(result.folder.path, counted(ranks, f"{device} rank"), measured)


def _here(spec: TrialSpec, machine: Machine) -> PlannedTrial:
    """The trial as this machine measures it, with the rule that it breaks here. CPU ranks have no fused Adam."""
    how = {"evidence": Evidence.MEASURED, "prediction": PredictionSpec(), "steps": STEPS, "repeat": 0}
    offloads = spec.offload_optimizer is not Offload.NONE
    if machine.accelerator is Accelerator.CPU and spec.optimizer is deepspeeds_adamw(offloaded=False):
        how["optimizer"] = deepspeeds_adamw(offloaded=True) if offloads else Optimizer.ADAMW
    trial = spec.model_copy(update=how)
    return PlannedTrial(trial=trial, skipped=find_skip(Situation(trial, machine, None)))
