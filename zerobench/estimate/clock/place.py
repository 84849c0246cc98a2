"""The GPU that a trial is about, and the nodes that it is predicted on."""

from zerobench.config.derived.cluster import Cluster, read_rate
from zerobench.config.hardware.hardware import Gpu, find_gpu
from zerobench.config.hardware.links import Links
from zerobench.config.hardware.usual_node import HOST_BANDWIDTH
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.trials import Trial, completed


def gpu_of(trial: Trial) -> Gpu | None:
    """The catalogue's entry of the GPU that the trial is about."""
    gpu_name = trial.spec.prediction.gpu if not trial.spec.evidence.needs_device else None
    names = [gpu_name] if gpu_name else [rank.device_name for rank in trial.ranks[:1]]
    return next((gpu for name in names if (gpu := find_gpu(name)) is not None), None)


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
