"""Which GPU a trial is about, and what a predicted step takes on it: at least, and expected."""

from typing import NamedTuple

from zerobench.config.deepspeed import drop_refused_keys
from zerobench.config.derived.cluster import Cluster, read_rate
from zerobench.config.hardware.hardware import Gpu, find_gpu
from zerobench.config.hardware.links import Links
from zerobench.config.hardware.usual_node import HOST_BANDWIDTH
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.time.bound import StepBound, step_bound
from zerobench.estimate.time.expected import expected_step, roofline, timeline
from zerobench.estimate.time.replay import Timeline
from zerobench.estimate.time.roofline import Roofline
from zerobench.estimate.time.step import ExpectedStep
from zerobench.records.trials import Trial, completed

WORK = {"model", "micro_batch_size", "gradient_accumulation_steps", "sequence_length", "precision"}
"""Of a script's trial: what a prediction of it must know."""


def gpu_of(trial: Trial) -> Gpu | None:
    """The catalogue's entry of the GPU that the trial is about."""
    gpu_name = trial.spec.prediction.gpu if not trial.spec.evidence.needs_device else None
    names = [gpu_name] if gpu_name else [rank.device_name for rank in trial.ranks[:1]]
    return next((gpu for name in names if (gpu := find_gpu(name)) is not None), None)


class PredictedStep(NamedTuple):
    """Times of a predicted step; None where a figure is missing."""

    bound: StepBound | None = None
    """What it takes at least."""
    expected: ExpectedStep | None = None


def predicted_step(trial: Trial) -> PredictedStep:
    """What a step of a predicted trial takes, on nodes as `zerobench plan` has them by default."""
    place = place_of(trial)
    if place is None:
        return PredictedStep()
    return PredictedStep(step_bound(trial, *place), expected_step(trial, *place))


def work_of(trial: TrialSpec) -> TrialSpec | None:
    """`trial`, or what a script's tracker saw, as one that can be predicted; None where too little of it is known."""
    if trial.own is None:
        return trial
    if WORK & set(trial.own.unknown):
        return None
    return drop_refused_keys(trial.model_copy(update={"own": None}))


def predicted_timeline(trial: Trial) -> Timeline | None:
    """Its step as it is replayed on such nodes; None for a trial without a trace."""
    place = place_of(trial)
    return None if place is None else timeline(trial, *place)


def predicted_roofline(trial: Trial) -> Roofline | None:
    """Its kernels by class against the GPU's peaks; None for a trial without a trace."""
    place = place_of(trial)
    return None if place is None else roofline(trial, *place)


def place_of(trial: Trial) -> tuple[Gpu, Links] | None:
    """The GPU and links of a prediction; None of what is none."""
    gpu = gpu_of(trial)
    if gpu is None or not trial.spec.evidence.is_predicted or not completed(trial):
        return None
    return gpu, usual_cluster(trial.spec, gpu).links


def usual_cluster(spec: TrialSpec, gpu: Gpu) -> Cluster:
    """The trial's nodes as `zerobench plan` has them by default, with the host memory that the trial was told of."""
    rate = read_rate("host bandwidth", HOST_BANDWIDTH)
    host = spec.prediction.host_memory_bytes
    return Cluster(gpu, spec.num_nodes, spec.gpus_per_node, host, host_memory_bytes_per_s=rate)
