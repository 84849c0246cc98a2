"""Strategies of training: one file each, all with the same small interface (base.Strategy)."""

from importlib import import_module

from zerobench.config.trial.trial import PipelineSchedule
from zerobench.rank.strategies.base import Job, Strategy

_MADE_BY = {
    "single": "torch_loop.Single",
    "ddp": "ddp.Ddp",
    "horovod": "horovod.Horovod",
    "parameter-server": "parameter_server.server_or_worker",
    "fsdp": "fsdp.Fsdp",
    "tensor": "tensor.Tensor",
    "pipeline": "pipeline.Pipeline",
    "rpc-pipeline": "rpc_pipeline.RpcPipeline",
    **dict.fromkeys(("zero0", "zero1", "zero2", "zero3"), "zero.Zero"),
}


def make_strategy(job: Job) -> Strategy:
    """Make the trial's strategy; zerobench.config.derived.strategy has already refused unknown names.

    Modules are imported on demand, since their dependencies may not be installed.
    """
    name, schedule = job.trial.strategy, job.trial.pipeline_schedule
    if name not in _MADE_BY:
        raise ValueError(f"strategy: {name!r} has no worker")
    is_deepspeeds = name == "pipeline" and schedule is PipelineSchedule.DEEPSPEED
    file, _, maker = ("deepspeed_pipeline.DeepSpeedPipeline" if is_deepspeeds else _MADE_BY[name]).partition(".")
    strategy: Strategy = getattr(import_module(f"{__name__}.{file}"), maker)(job)
    return strategy
