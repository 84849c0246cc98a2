"""From the words of `zerobench plan` to trials: all that can be wrong is found before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.search.plan_world import PlanWorld, plan_world
from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.derived.cluster import Cluster, read_cluster
from zerobench.config.derived.frontier_axes import frontier_axis
from zerobench.config.derived.varied import Variations, read_global_batch, varied
from zerobench.config.models.architecture import position_limit
from zerobench.config.models.presets import PRESETS, is_model
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.sweep.plan import cells, document, read_stages, read_work, replace_blocks, replace_evidence
from zerobench.config.sweep.plan_files import own_config, sweep_gpu, sweep_points
from zerobench.config.sweep.sweep import find_sweep
from zerobench.config.trial.trial import FINE_TUNING, Blocks


@dataclass(frozen=True)
class Plan:
    """Trials to predict, and the cluster that they are predicted for."""

    name: str
    document: Mapping[str, Any]
    """The sweep that is kept with the run."""
    planned: list[PlannedTrial]
    cluster: Cluster
    world: PlanWorld
    varied: Variations | None = None
    """Variations of each of `planned`; None: each is predicted as it stands."""


def _can_be_written(path: Path) -> None:
    """Before minutes of predictions, not after. Raises UserError."""
    if not path.absolute().parent.is_dir():
        raise UserError(f"--write: {path}: no folder {path.parent}")
    if path.is_dir():
        raise UserError(f"--write: {path}: a folder, not a file; for example {path / 'ds_config.json'}")


def read_plan(request: PlanRequest) -> Plan:
    """The plan that `request` asks for. Raises UserError, one line, for the first thing wrong in it."""
    if request.write is not None:
        _can_be_written(request.write)
    if request.frontier is not None:
        frontier_axis(request.frontier)
        _refuse(request, "--frontier", ("write", "tokens", "price", *_BATCH))
    if request.sweep is not None and is_model(request.sweep):
        if request.model is not None:
            raise UserError(f"{request.sweep} and --model {request.model}: give one model")
        request = replace(request, sweep=None, model=request.sweep)
    if request.sweep is not None:
        return _sweep_plan(request, request.sweep)
    for option in ("model", "gpus", "gpu"):
        if getattr(request, option) is None:
            raise UserError(f"--{option} is missing; for example: {_EXAMPLE}")
    if request.sets:
        raise UserError("--set needs a sweep")
    cluster, blocks = _cluster(request, request.gpu or "", request.gpus or ""), _blocks(request)
    work = _work(request)  # what is wrong in it comes before what is lacking
    work = {"sequence_length": min(_SEQUENCE_LENGTH, position_limit(work["model"]) or _SEQUENCE_LENGTH)} | work
    variants = _varied(request, work, cluster)
    simulated = _planned(request, work, cluster)
    world = plan_world(request.evidence, cluster.gpu, by_formula=request.formula)
    planned = replace_blocks(replace_evidence(simulated, world.evidence), blocks)
    name = f"{'tune' if request.tunes else 'plan'}-{planned[0].trial.model.name}"
    return Plan(name, document(name, planned), planned, cluster, world, variants)


_EXAMPLE = "zerobench plan --model llama-7b --gpus 8 --gpu h200 --host-memory 1TB"

_BATCH = ("global_batch", "tokens_per_step")
_SIZES = ("model", "micro_batch", "gradient_accumulation", *_BATCH, "sequence_length", "precision")
_WORK = (*_SIZES, "lora", "stage", "ds_config")
_SEQUENCE_LENGTH = 2048


def _sweep_plan(request: PlanRequest, sweep: str) -> Plan:
    find_sweep(sweep, or_models=PRESETS)
    _refuse(request, "a sweep", _WORK)
    if request.activation_checkpointing:
        raise UserError("--activation-checkpointing: set by the sweep: --set activation_checkpointing=true")
    gpu = sweep_gpu(sweep) if request.gpu is None else request.gpu
    cluster = _cluster(request, gpu, request.gpus or request.gpus_per_node)
    world = plan_world(request.evidence, cluster.gpu, by_formula=request.formula)
    read, planned = sweep_points(sweep, cluster, request.sets or (), world.evidence)
    return Plan(read.name, read.document, replace_blocks(planned, _blocks(request)), cluster, world)


def _blocks(request: PlanRequest) -> Blocks:
    if request.blocks not in {None, *Blocks}:
        raise unknown_choice("--blocks", request.blocks, Blocks)
    return Blocks(request.blocks or Blocks.TRANSFORMERS)


def _refuse(request: PlanRequest, beside: str, options: Sequence[str]) -> None:
    for option in options:
        if getattr(request, option) is not None:
            raise UserError(f"--{option.replace('_', '-')} does not go with {beside}")


def _cluster(request: PlanRequest, gpu: str, gpus: str) -> Cluster:
    return read_cluster(
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=request.gpus_per_node,
        host_memory=request.host_memory,
        host_bandwidth=request.host_bandwidth,
        nvme=request.nvme,
    )


def _work(request: PlanRequest) -> dict[str, Any]:
    work = read_work(
        {
            "model": request.model,
            "micro_batch_size": request.micro_batch,
            "gradient_accumulation_steps": request.gradient_accumulation,
            "sequence_length": request.sequence_length,
            "precision": request.precision,
            "activation_checkpointing": request.activation_checkpointing,
            "adapter": None if request.lora is None else f"lora-{request.lora}",
        }
    )
    return work | ({"hyperparameters": FINE_TUNING} if request.fine_tune else {})


def _varied(request: PlanRequest, work: Mapping[str, Any], cluster: Cluster) -> Variations | None:
    """Variations of a given global batch; each of the cells then begins at the first of the variants."""
    length, ranks = work["sequence_length"], cluster.num_gpus
    batch = read_global_batch(request.global_batch, request.tokens_per_step, sequence_length=length, ranks=ranks)
    if batch is None:
        return None
    if request.ds_config is not None:
        _refuse(request, "--ds-config", _BATCH)
    return varied(batch, ranks, work, tunes=request.tunes)


def _planned(request: PlanRequest, work: Mapping[str, Any], cluster: Cluster) -> list[PlannedTrial]:
    if request.ds_config is None:
        return cells(work, cluster, read_stages(request.stage))
    if request.stage is not None:
        raise UserError("--stage does not go with --ds-config, which sets it")
    return own_config(request.ds_config, work, cluster)
