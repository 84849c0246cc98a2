"""What `zerobench plan` does: from the command line's words to an ordinary run of predicted trials, and what it says.

All that can be wrong in a request is found before anything is written or started.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from zerobench.cli.live import LiveView, PlainView
from zerobench.cli.paths import shortest
from zerobench.cli.plan_world import PlanWorld, plan_world
from zerobench.cli.run import notes_of
from zerobench.errors import UserError
from zerobench.records import Status, TrialRecord
from zerobench.report.plan.rows import PlanRow
from zerobench.report.plan.view import show_plan
from zerobench.run.environment import capture_environment
from zerobench.run.runner import RunResult, run_sweep
from zerobench.run.site import LocalSite
from zerobench.spec.cluster import HOST_BANDWIDTH, Cluster, read_cluster, read_tokens
from zerobench.spec.expand import PlannedTrial
from zerobench.spec.frontier_axes import frontier_axis
from zerobench.spec.plan import cells, document, in_world, read_stages, read_work
from zerobench.spec.plan_own import own_config
from zerobench.spec.plan_sweep import sweep_gpu, sweep_points
from zerobench.spec.target import GPUS_PER_NODE
from zerobench.spec.trial import Offload, TrialSpec, slug
from zerobench.store import load_run


@dataclass(frozen=True)
class Request:
    """What the command line asks for, as written."""

    sweep: str | None = None
    model: str | None = None
    gpus: str | None = None
    gpu: str | None = None
    gpus_per_node: str = str(GPUS_PER_NODE)
    host_memory: str | None = None
    host_bandwidth: str = HOST_BANDWIDTH
    nvme: str | None = None
    micro_batch: str | None = None
    gradient_accumulation: str | None = None
    sequence_length: str | None = None
    precision: str | None = None
    activation_checkpointing: bool = False
    stage: str | None = None
    ds_config: str | None = None
    write: Path | None = None
    tokens: str | None = None
    frontier: str | None = None
    evidence: str | None = None
    """Where figures come from; None for the best that is at hand."""
    formula: bool = False
    """Short for evidence formula."""
    sets: Sequence[str] = ()
    reports: Path = Path("reports")


@dataclass(frozen=True)
class Plan:
    """What is to be predicted, and for what."""

    name: str
    document: Mapping[str, Any]
    """The sweep that is kept with the run."""
    planned: list[PlannedTrial]
    cluster: Cluster
    world: PlanWorld


def plan(request: Request) -> int:
    """Predict what is asked for and show it; the command's exit status: 1 where nothing fits or a trial failed."""
    tokens = None if request.tokens is None else read_tokens("--tokens", request.tokens)
    asked = read_plan(request)
    if request.frontier is not None:
        from zerobench.cli.frontier import show_frontier  # noqa: PLC0415 -- the two use each other

        return show_frontier(asked, frontier_axis(request.frontier), request.reports)
    result = predict(asked.planned, asked.name, asked.document, request.reports)
    if result.interrupted:
        return result.exit_code
    best = show_plan(result.folder.path, asked.cluster, Console(highlight=False), tokens)
    for note in (*([asked.world.note] if asked.world.note else []), *notes_of(asked.planned)):
        typer.echo(f"note: {note}")
    if request.write is not None and best is not None:
        _write(result, best, request.write)
    typer.echo(f"run: {shortest(result.folder.path)}")
    return 1 if best is None or set(result.statuses) - _ANSWERS else 0


_ANSWERS = {Status.COMPLETED, Status.SKIPPED, Status.OUT_OF_DEVICE_MEMORY}
"""What a trial of a plan may come to: that it does not fit is an answer too."""


def read_plan(request: Request) -> Plan:
    """The plan that `request` asks for. Raises UserError, one line, for the first thing wrong in it."""
    if request.write is not None and not request.write.absolute().parent.is_dir():
        raise UserError(f"--write: {request.write}: there is no folder {request.write.parent}")
    if request.frontier is not None:
        frontier_axis(request.frontier)
        _refuse(request, "--frontier", ("write", "tokens"))
    if request.sweep is not None:
        return _of_sweep(request, request.sweep)
    for option in ("model", "gpus", "gpu"):
        if getattr(request, option) is None:
            raise UserError(f"--{option} is missing; for example: {_EXAMPLE}")
    if request.sets:
        raise UserError("--set changes a sweep, and none is named")
    cluster = _cluster(request, request.gpu or "", request.gpus or "")
    world = plan_world(request.evidence, cluster.gpu, by_formula=request.formula)
    planned = in_world(_planned(request, cluster), world.evidence)
    name = f"plan-{planned[0].trial.model.name}"
    return Plan(name, document(name, planned), planned, cluster, world)


_EXAMPLE = "zerobench plan --model llama-7b --gpus 8 --gpu h200 --host-memory 1TB"

_WORK = ("model", "micro_batch", "gradient_accumulation", "sequence_length", "precision", "stage", "ds_config")


def _of_sweep(request: Request, sweep: str) -> Plan:
    _refuse(request, "a sweep", _WORK)
    if request.activation_checkpointing:
        raise UserError("--activation-checkpointing: the sweep says it: --set activation_checkpointing=true")
    gpu = sweep_gpu(sweep) if request.gpu is None else request.gpu
    cluster = _cluster(request, gpu, request.gpus or request.gpus_per_node)
    world = plan_world(request.evidence, cluster.gpu, by_formula=request.formula)
    read, planned = sweep_points(sweep, cluster, request.sets, world.evidence)
    return Plan(read.name, read.document, planned, cluster, world)


def _refuse(request: Request, beside: str, options: Sequence[str]) -> None:
    for option in options:
        if getattr(request, option) is not None:
            raise UserError(f"--{option.replace('_', '-')} means nothing beside {beside}")


def _cluster(request: Request, gpu: str, gpus: str) -> Cluster:
    return read_cluster(
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=request.gpus_per_node,
        host_memory=request.host_memory,
        host_bandwidth=request.host_bandwidth,
        nvme=request.nvme,
    )


def _planned(request: Request, cluster: Cluster) -> list[PlannedTrial]:
    work = read_work(
        {
            "model": request.model,
            "micro_batch_size": request.micro_batch,
            "gradient_accumulation_steps": request.gradient_accumulation,
            "sequence_length": request.sequence_length,
            "precision": request.precision,
            "activation_checkpointing": request.activation_checkpointing,
        }
    )
    if request.ds_config is None:
        return cells({"sequence_length": 2048} | work, cluster, read_stages(request.stage))
    if request.stage is not None:
        raise UserError("--stage means nothing beside --ds-config: the file names one")
    return own_config(request.ds_config, {"sequence_length": 2048} | work, cluster)


def predict(planned: Sequence[PlannedTrial], name: str, sweep: Mapping[str, Any], reports: Path) -> RunResult:
    """Run the predicted trials `planned` into a fresh folder under `reports`. Raises UserError."""
    console = Console(highlight=False, stderr=True)
    return run_sweep(
        planned,
        sweep_name=slug(name),
        sweep=sweep,
        environment=capture_environment(),
        reports=reports,
        site=LocalSite(num_cpus=os.cpu_count() or 1, num_gpus=0),
        observer=_MovingView(console) if console.is_terminal else _StillView(console),
    )


class _MovingView(LiveView):
    """One line that moves; trials that answered are in the tables below and need none of their own."""

    def trial_ended(self, record: TrialRecord) -> None:
        if record.status not in _ANSWERS:
            super().trial_ended(record)


class _StillView(PlainView):
    """One line for the run, and one for each trial that failed."""

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        """Nothing: it ends within seconds."""

    def trial_ended(self, record: TrialRecord) -> None:
        if record.status not in _ANSWERS:
            super().trial_ended(record)


def _write(result: RunResult, best: PlanRow, path: Path) -> None:
    """The recommended trial's configuration, ready for DeepSpeed."""
    spec = best.trial.spec
    try:
        shutil.copyfile(load_run(result.folder.path).folder.trial(spec.trial_id).ds_config, path)
    except OSError as error:
        raise UserError(f"--write: {path}: {error.strerror or error}") from None
    typer.echo(f"written: {path}, the configuration of {best.shown.label}")
    if Offload.NVME in {spec.offload_optimizer, spec.offload_param}:
        typer.echo("set nvme_path in it to a folder on your NVMe drive")
