"""A sweep's points as predictions for a cluster: any sweep file can be planned before anybody has the GPUs.

What the sweep says of ranks holds; `auto`, or nothing, means the cluster's. What it says of evidence gives way: every
point is simulated, or worked out by formula.
"""

from collections.abc import Sequence

from zerobench.common.errors import UserError
from zerobench.config.axes.axis_readers import AUTO
from zerobench.config.derived.cluster import Cluster
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.sweep import Sweep, load_sweep
from zerobench.config.trial.trial import Evidence


def sweep_gpu(name: str) -> str:
    """The one GPU that the sweep called `name` names itself. Raises UserError where it names none, or several."""
    names = {gpu for gpu in load_sweep(name).on_cuda.grid.get("gpu", []) if gpu not in {None, AUTO}}
    if len(names) != 1:
        several = f"the sweep has {len(names)}" if names else "the sweep has none"
        raise UserError(f"--gpu is missing: {several}; give the one to plan for, for example --gpu h200")
    return str(names.pop())


def sweep_points(
    name: str, cluster: Cluster, sets: Sequence[str] = (), evidence: Evidence = Evidence.SIMULATED
) -> tuple[Sweep, list[PlannedTrial]]:
    """The sweep called `name`, predicted on the cluster's GPU, and its trials there, skipped ones included.

    Raises UserError, one line, for what is wrong in the sweep, and where none of its points can be.
    """
    settings = [*sets, f"evidence={evidence}", f"gpu={cluster.gpu.name}", "rank=0"]
    sweep = load_sweep(name, settings, repeats=1)
    planned = expand(sweep, cluster.machine)
    if all(item.skipped for item in planned):
        reasons = [item.skipped.reason for item in planned if item.skipped]
        raise UserError(f"{sweep.where}: {reasons[0]}")
    return sweep, [_on(item, cluster) for item in planned]


def _on(item: PlannedTrial, cluster: Cluster) -> PlannedTrial:
    """The trial with the memory of the cluster's nodes."""
    return item.predicted_with(host_memory_bytes=cluster.host_memory_bytes)
