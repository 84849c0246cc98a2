"""The strategies of a sweep: a new one is an entry here and a file under `rank/strategies`.

An entry has what the command line, the rules and the reports need without running it: its requirements, the kinds of
evidence it supports, its axes, and the tolerance of its losses from the reference's.
"""

from functools import partial
from typing import Any

from pydantic import Field

from zerobench.common.errors import unknown_choice
from zerobench.config.trial.base import Spec
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import (
    Compression,
    Consistency,
    CrossEntropy,
    Evidence,
    PipelineSchedule,
    Precision,
    TfStrategy,
    TrialSpec,
)

_REORDERED = "the same sums in another order"

_OWN_LOSS = ("cross_entropy",)
"""Axes of strategies whose model computes its own loss, whole on each rank."""

_OWN_FORWARD = (*_OWN_LOSS, "compile", "adapter", "frozen")
"""Axes of strategies that also leave the forward and backward pass to torch."""

_READS_FILES = (*_OWN_FORWARD, "weights")
"""Axes of strategies whose model from_pretrained can also make: as transformers builds it, or under zero.Init."""

_DEEPSPEED = ("ds_config", "ds_config_file")

ZEROPP = ("hpz_partition_size", "quantized_weights", "quantized_gradients")
"""ZeRO++'s three changes of stage 3 (Wang et al., arXiv 2306.10209): hpZ, qwZ and qgZ."""
_TORCH_SAVE = "torch.save"
_DCP = "torch.distributed.checkpoint"


class StrategyInfo(Spec):
    """One strategy."""

    name: str
    summary: str
    """One line for users."""
    zero_stage: int | None = None
    """ZeRO stage; None for strategies without DeepSpeed's sharding."""
    paper_stage: int | None = None
    """Stage whose terms of the ZeRO paper divide the same states; None if it has none."""
    uses_deepspeed: bool = True
    """Whether DeepSpeed's engine runs it, with a ds_config; for a pipeline its schedule decides (`uses_deepspeed`)."""
    is_reference: bool = False
    """One process that trains the whole global batch; other losses are compared with its own."""
    least_processes: int = 1
    """Fewest ranks."""
    num_servers: int = 0
    """Number of first ranks that have weights and optimizer states for the others and see no data."""
    needs_gpu: bool = False
    """Whether its ranks must have GPUs."""
    packages: tuple[str, ...] = ("torch",)
    """Required packages, by import name."""
    environment: str | None = None
    """Separate environment in which its ranks run and which has the packages (zerobench.common.environments); None if
    they run in the suite's own."""
    evidences: tuple[Evidence, ...] = tuple(Evidence)
    """Kinds of evidence that it supports."""
    unavailable: dict[Evidence, str] = Field(default_factory=dict)
    """Reason for each kind of evidence that it does not support."""
    axes: tuple[str, ...] = ()
    """Its axes besides those of every strategy."""
    divides_batch: bool = True
    """Whether each rank trains samples of its own; else ranks divide the model and train the same samples
    (zerobench.config.derived.batch)."""
    fixed_batch: str | None = None
    """Reason why the number of micro-batches cannot change between steps; None if it can, as a batch ramp needs."""
    divides_layers: bool = False
    """Whether its ranks are pipeline stages: each has some of the blocks, and only the last the loss."""
    settled_after_steps: int = 1
    """Steps after which each further one allocates and moves the same."""
    is_driven: bool = False
    """Whether rank 0 alone reads the data and directs the others."""
    exact: bool = True
    """Whether it computes what the reference computes, up to the order of additions, and is judged by that. A strategy
    that changes the arithmetic (compressed or stale gradients) is shown unjudged, with its distance."""
    loss_tolerance: float = 5e-6
    """Largest absolute difference from the reference's fp32 loss at which an exact strategy still agrees. In 16 bits
    one tolerance by rounding applies to all (zerobench.report.figures.parity)."""
    tolerance_reason: str = _REORDERED
    """Reason for that difference."""
    checkpoint: str | None = None
    """Code that saves and loads it; None: a trial with a checkpoint is refused."""
    bound_to_ranks: str | None = None
    """Reason why a checkpoint cannot be resumed on another number of ranks; None if it can."""


_ALONE = "the driver waits for the other stages; use measured"
_PREDICTED = tuple(world for world in Evidence if world is not Evidence.MEASURED)
_OWN_ENVIRONMENT = "its ranks run in a separate environment; use measured"
_ELSEWHERE: Any = {"evidences": (Evidence.MEASURED,), "unavailable": dict.fromkeys(_PREDICTED, _OWN_ENVIRONMENT)}
_RPC_UNAVAILABLE = {**dict.fromkeys(_PREDICTED, _ALONE), Evidence.FORMULA: "no closed form for its memory"}


def _zero(stage: int, summary: str, *offload: str) -> StrategyInfo:
    return StrategyInfo(
        name=f"zero{stage}",
        summary=summary,
        zero_stage=stage,
        paper_stage=stage,
        packages=("torch", "deepspeed"),
        axes=(*_DEEPSPEED, *offload, *_READS_FILES),
        checkpoint="DeepSpeed's save_checkpoint" + ("; ds_to_universal for other ranks" if stage else ""),
    )


_torch = partial(StrategyInfo, uses_deepspeed=False)

STRATEGIES: dict[str, StrategyInfo] = {
    info.name: info
    for info in (
        _torch(
            name="single",
            summary="a plain torch loop in one process: the reference",
            is_reference=True,
            paper_stage=0,
            loss_tolerance=0.0,
            tolerance_reason="it is the reference",
            axes=_READS_FILES,
            checkpoint=_TORCH_SAVE,
        ),
        _torch(
            name="ddp",
            summary="torch DDP: all model states on every rank, bucketed all-reduce",
            paper_stage=0,
            settled_after_steps=2,  # it deals gradients into other buckets in the second forward pass
            axes=("bucket_bytes", "compression", *_READS_FILES),
            checkpoint=f"{_TORCH_SAVE} by rank 0",
        ),
        _zero(0, "DeepSpeed stage 0: all model states on every rank"),
        _zero(1, "ZeRO-1: optimizer states partitioned", "offload_optimizer"),
        _zero(2, "ZeRO-2: gradients partitioned too", "offload_optimizer"),
        _zero(3, "ZeRO-3: parameters partitioned too", "zero_init", "offload_optimizer", "offload_param", *ZEROPP),
        _torch(
            name="fsdp",
            summary="torch FSDP2 (fully_shard): all model states partitioned",
            paper_stage=3,
            axes=("reshard_after_forward", "offload_optimizer", "offload_param", "mics_shard_size", *_OWN_FORWARD),
            checkpoint=_DCP,
        ),
        _torch(
            name="parameter-server",
            summary="rank 0 holds weights and optimizer, the others send gradients",
            least_processes=2,
            num_servers=1,
            evidences=tuple(world for world in Evidence if world is not Evidence.FORMULA),
            unavailable={Evidence.FORMULA: "no closed form for its memory; use simulated"},
            axes=("consistency", *_OWN_LOSS),
            checkpoint=f"{_TORCH_SAVE} by the server",
            tolerance_reason="order of summation differs from a single process",
        ),
        _torch(
            name="tensor",
            summary="torch tensor parallelism (DTensor): every block's matrices cut",
            divides_batch=False,
            checkpoint=_DCP,
        ),
        _torch(
            name="pipeline",
            summary="blocks split into stages (GPipe, 1F1B; torch or DeepSpeed)",
            least_processes=2,
            divides_batch=False,
            divides_layers=True,
            fixed_batch="its schedule has a fixed number of micro-batches",
            axes=("pipeline_schedule",),
            checkpoint=f"{_DCP}; DeepSpeed's save_checkpoint, for as many stages, where it runs the schedule",
        ),
        _torch(
            name="rpc-pipeline",
            summary="pipeline stages on remote workers, by torch.distributed.rpc",
            least_processes=2,
            evidences=(Evidence.MEASURED,),
            unavailable=_RPC_UNAVAILABLE,
            divides_batch=False,
            divides_layers=True,
            is_driven=True,
            checkpoint=_DCP,
            tolerance_reason="distributed autograd sums micro-batch gradients in order of arrival",
        ),
        _torch(
            name="horovod",
            summary="Horovod: all model states on every rank, fused all-reduce",
            paper_stage=0,
            packages=("torch", "horovod"),
            environment="horovod",
            **_ELSEWHERE,
            axes=("bucket_bytes", "compression"),
            checkpoint=f"{_TORCH_SAVE} by rank 0",
        ),
        _torch(
            name="tensorflow",
            summary="tf.distribute: the same model in Keras (tpu never run on one)",
            paper_stage=0,
            packages=("tensorflow",),
            environment="tensorflow",
            fixed_batch="a step is one graph with a fixed number of micro-batches",
            **_ELSEWHERE,
            axes=("tf_strategy",),
            checkpoint="tf.train.Checkpoint by one process",
        ),
    )
}
"""In the order of tables and help: the reference, strategies that divide nothing, ZeRO and similar ones, a server, and
last those with separate environments."""


def strategy_info(name: object) -> StrategyInfo:
    """Entry of `name`. Raises UserError with the nearest name and all choices."""
    if isinstance(name, str) and name in STRATEGIES:
        return STRATEGIES[name]
    raise unknown_choice("strategy", name, STRATEGIES)


def uses_deepspeed(trial: TrialSpec) -> bool:
    """Return whether DeepSpeed's engine runs the trial, by its strategy or its pipeline schedule."""
    return _is_deepspeeds(strategy_info(trial.strategy), trial.pipeline_schedule)


def strategies_with(axis: str) -> str:
    """Names of the strategies that have an axis, for sentences."""
    return ", ".join(name for name, info in STRATEGIES.items() if axis in info.axes)


def axes_of(info: StrategyInfo, schedule: PipelineSchedule) -> set[str]:
    """Axes of a strategy under a pipeline schedule."""
    return {*info.axes, *(_DEEPSPEED if _is_deepspeeds(info, schedule) else ())}


def _is_deepspeeds(info: StrategyInfo, schedule: PipelineSchedule) -> bool:
    is_scheduled = "pipeline_schedule" in info.axes and schedule is PipelineSchedule.DEEPSPEED
    return info.uses_deepspeed or is_scheduled


def strategy_packages() -> list[str]:
    """Packages that strategies need in this environment, by import name."""
    here = [info for info in STRATEGIES.values() if info.environment is None]
    return sorted({package for info in here for package in info.packages})


def is_exact(trial: TrialSpec) -> bool:
    """Return whether the trial computes what the reference computes: the same gradients, and the same updates from
    them.
    """
    update = OPTIMIZERS[trial.optimizer].inexact_reason(
        in_parts=(paper_stage(trial) or 0) > 0, is_clipped=trial.hyperparameters.gradient_clipping > 0
    )
    return has_exact_gradients(trial) and update is None


def has_exact_gradients(trial: TrialSpec) -> bool:
    """Return whether equal weights yield the reference's gradients: nothing is compressed or quantized on its way, and
    no gradient is computed from stale weights.
    """
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    is_stale = trial.consistency is Consistency.ASYNC
    if trial.strategy == "tensorflow" and trial.tf_strategy is TfStrategy.TPU:
        return False  # it multiplies fp32 in bf16 (Cloud TPU, "Improve your model's performance with bfloat16")
    is_lossy = trial.compression is not Compression.NONE or trial.quantized_weights or trial.quantized_gradients
    is_lossy |= trial.cross_entropy is CrossEntropy.MODEL_DTYPE and trial.precision is not Precision.FP32
    return (info is None or info.exact) and not is_lossy and not is_stale


def paper_stage(trial: TrialSpec) -> int | None:
    """Stage whose terms the ZeRO paper would give for the trial; None if it has none."""
    info = STRATEGIES.get(trial.strategy)
    if trial.strategy == "tensorflow" and trial.tf_strategy is TfStrategy.PARAMETER_SERVER:
        return None
    return trial.zero_stage if info is None else info.paper_stage
