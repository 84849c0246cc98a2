"""The ways to train that a sweep may name: a new one is an entry here and a file under `worker/strategies`.

An entry says what the command line, the rules and the reports need to know of a strategy without running it: what it
needs, in which worlds it can be run, which axes mean something to it, and how near its losses must be to those of the
reference.
"""

from __future__ import annotations

from pydantic import Field

from zerobench.errors import unknown_choice
from zerobench.spec.base import Spec
from zerobench.spec.trial import Compression, Consistency, Evidence, PipelineSchedule, TrialSpec

_REORDERED = "the same sums in another order"

SETTINGS = ("ds_config", "ds_config_file", "bucket_bytes", "reshard_after_forward", "pipeline_schedule")
"""Axes that set up one engine and change neither the work nor where states lie: dropped for every other strategy, so
that one sweep may set each engine up beside the others. What does change them (offload, compression) is refused where a
strategy has no such thing."""

_DEEPSPEED = ("ds_config", "ds_config_file")


class StrategyInfo(Spec):
    """One way to train."""

    name: str
    summary: str
    """One line for people."""
    zero_stage: int | None = None
    """ZeRO stage; None for strategies without DeepSpeed's sharding."""
    paper_stage: int | None = None
    """The stage at which the ZeRO paper's terms divide the same states; None where they speak of something else."""
    uses_deepspeed: bool = True
    """Whether DeepSpeed's engine runs it, from a ds_config; of a pipeline its schedule decides (`uses_deepspeed`)."""
    is_reference: bool = False
    """One process that trains the whole global batch; the others' losses are held against it."""
    least_processes: int = 1
    """Ranks below which it is not itself."""
    num_servers: int = 0
    """Ranks, the first ones, that hold weights and optimizer states for the others and see no data."""
    needs_gpu: bool = False
    """Whether its ranks must have GPUs."""
    packages: tuple[str, ...] = ("torch",)
    """What must be installed, by the names that are imported."""
    evidences: tuple[Evidence, ...] = tuple(Evidence)
    """The worlds that it can be run in."""
    unavailable: dict[Evidence, str] = Field(default_factory=dict)
    """Why it cannot be run in each of the others."""
    axes: tuple[str, ...] = ()
    """Axes that mean something to it, beside those that mean something to every strategy."""
    divides_batch: bool = True
    """Whether each rank trains samples of its own. Else the ranks divide the model, and all train the same samples
    (zerobench.spec.batch)."""
    fixed_batch: str | None = None
    """Why the number of micro-batches cannot change from step to step; None where it can, as a batch ramp needs."""
    divides_layers: bool = False
    """Whether its ranks are the stages of a pipeline: each has some of the blocks, and the last alone the loss."""
    exact: bool = True
    """Whether it computes what the reference computes, but for the order of additions, and is judged by that. A
    strategy that changes the arithmetic (compressed gradients, stale ones) is not exact and is shown unjudged, with its
    distance."""
    loss_tolerance: float = 5e-6
    """Largest difference of an fp32 loss from the reference's, absolute, at which an exact strategy still agrees. In 16
    bits rounding decides, which is the same for all (zerobench.report.parity)."""
    tolerance_reason: str = _REORDERED
    """Why it may differ by so much."""


def _zero(stage: int, summary: str, *offload: str) -> StrategyInfo:
    return StrategyInfo(
        name=f"zero{stage}",
        summary=summary,
        zero_stage=stage,
        paper_stage=stage,
        packages=("torch", "deepspeed"),
        axes=(*_DEEPSPEED, *offload),
    )


STRATEGIES: dict[str, StrategyInfo] = {
    info.name: info
    for info in (
        StrategyInfo(
            name="single",
            summary="a plain torch loop in one process, on the same global batch: the reference",
            uses_deepspeed=False,
            is_reference=True,
            paper_stage=0,
            loss_tolerance=0.0,
            tolerance_reason="it is what the others are held against",
        ),
        StrategyInfo(
            name="ddp",
            summary="torch DistributedDataParallel: all model states on every rank, bucketed all-reduce",
            uses_deepspeed=False,
            paper_stage=0,
            axes=("bucket_bytes", "compression"),
        ),
        _zero(0, "DeepSpeed, all model states on every rank"),
        _zero(1, "ZeRO-1: optimizer states partitioned", "offload_optimizer"),
        _zero(2, "ZeRO-2: gradients partitioned too", "offload_optimizer"),
        _zero(3, "ZeRO-3: parameters partitioned too", "offload_optimizer", "offload_param"),
        StrategyInfo(
            name="fsdp",
            summary="torch FSDP2, fully_shard per block: all model states partitioned, as at stage 3",
            uses_deepspeed=False,
            paper_stage=3,
            axes=("reshard_after_forward", "offload_optimizer", "offload_param"),
        ),
        StrategyInfo(
            name="parameter-server",
            summary="rank 0 holds weights and optimizer, the others send gradients and get weights (Li et al. 2014)",
            uses_deepspeed=False,
            least_processes=2,
            num_servers=1,
            evidences=(Evidence.MEASURED, Evidence.SOLO, Evidence.SIMULATED),
            unavailable={Evidence.FORMULA: "no closed form of its memory is written; use simulated"},
            axes=("consistency",),
            tolerance_reason="the server adds the workers' gradients in another order than one process accumulates in",
        ),
        StrategyInfo(
            name="tensor",
            summary="torch tensor parallelism (DTensor): matrices of every block cut across all ranks, as Megatron-LM",
            uses_deepspeed=False,
            divides_batch=False,
        ),
        StrategyInfo(
            name="pipeline",
            summary="blocks split over ranks as stages, micro-batches pass through (GPipe, 1F1B; torch or DeepSpeed)",
            uses_deepspeed=False,
            least_processes=2,
            divides_batch=False,
            divides_layers=True,
            fixed_batch="its schedule is made for one number of micro-batches",
            evidences=(Evidence.MEASURED, Evidence.SOLO, Evidence.SIMULATED),
            unavailable={Evidence.FORMULA: "no closed form of a stage's memory is written; use simulated"},
            axes=("pipeline_schedule",),
        ),
    )
}
"""In the order in which tables and help list them: the reference, what divides nothing, ZeRO, its like, a server."""


def strategy_info(name: object) -> StrategyInfo:
    """The entry of `name`. Raises UserError with the nearest right name and all choices."""
    if isinstance(name, str) and name in STRATEGIES:
        return STRATEGIES[name]
    raise unknown_choice("strategy", name, STRATEGIES)


def uses_deepspeed(trial: TrialSpec) -> bool:
    """Whether DeepSpeed's engine runs the trial: so its strategy is, or its schedule of a pipeline."""
    info = strategy_info(trial.strategy)
    return info.uses_deepspeed or (info.divides_layers and trial.pipeline_schedule is PipelineSchedule.DEEPSPEED)


def strategy_packages() -> list[str]:
    """Every package that some strategy needs, by the name that is imported."""
    return sorted({package for info in STRATEGIES.values() for package in info.packages})


def is_exact(trial: TrialSpec) -> bool:
    """Whether the trial computes what the reference computes: its strategy does, and no gradient is compressed or
    computed on weights that others have moved on from.
    """
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    is_stale = trial.consistency is Consistency.ASYNC
    return (info is None or info.exact) and trial.compression is Compression.NONE and not is_stale


def paper_stage(trial: TrialSpec) -> int | None:
    """The stage whose terms the ZeRO paper would write for the trial; None where it speaks of no such thing."""
    info = STRATEGIES.get(trial.strategy)
    return trial.zero_stage if info is None else info.paper_stage
