"""Ways to train: one file each, all through the same small door (base.Strategy)."""

from zerobench.spec.trial import PipelineSchedule
from zerobench.worker.strategies.base import Job, Strategy


def make_strategy(job: Job) -> Strategy:
    """The strategy that the trial names; zerobench.spec.strategy has refused unknown names before.

    Each is imported only where it is wanted: what it needs may not be installed.
    """
    match job.trial.strategy:
        case "single":
            from zerobench.worker.strategies.torch_loop import Single

            return Single(job)
        case "ddp":
            from zerobench.worker.strategies.ddp import Ddp

            return Ddp(job)
        case "horovod":
            from zerobench.worker.strategies.horovod import Horovod

            return Horovod(job)
        case "parameter-server":
            from zerobench.worker.strategies.parameter_server import server_or_worker

            return server_or_worker(job)
        case "fsdp":
            from zerobench.worker.strategies.fsdp import Fsdp

            return Fsdp(job)
        case "tensor":
            from zerobench.worker.strategies.tensor import Tensor

            return Tensor(job)
        case "pipeline":
            return _pipeline(job)
        case "rpc-pipeline":
            from zerobench.worker.strategies.rpc_pipeline import RpcPipeline

            return RpcPipeline(job)
        case "zero0" | "zero1" | "zero2" | "zero3":
            from zerobench.worker.strategies.zero import Zero

            return Zero(job)
    raise ValueError(f"strategy: {job.trial.strategy!r} has no worker")


def _pipeline(job: Job) -> Strategy:
    """The engine that runs the trial's schedule."""
    if job.trial.pipeline_schedule is PipelineSchedule.DEEPSPEED:
        from zerobench.worker.strategies.deepspeed_pipeline import DeepSpeedPipeline

        return DeepSpeedPipeline(job)
    from zerobench.worker.strategies.pipeline import Pipeline

    return Pipeline(job)
