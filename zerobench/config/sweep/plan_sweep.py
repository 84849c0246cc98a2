"""A sweep's points as predictions for a cluster: any sweep file can be planned before the GPUs exist.

The sweep's ranks hold; `auto`, or none, means the cluster's. Its evidence is replaced: every point is simulated, or
computed by formula.
"""

from collections.abc import Sequence

from zerobench.common.errors import UserError
from zerobench.config.axes.axis_readers import AUTO
from zerobench.config.derived.cluster import Cluster
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.sweep import Sweep, load_sweep
from zerobench.config.trial.trial import Evidence


def sweep_gpu(name: str) -> str:
    """The one GPU that the sweep called `name` has. Raises UserError if it has none, or several."""
    names = {gpu for gpu in load_sweep(name).on_cuda.grid.get("gpu", []) if gpu not in {None, AUTO}}
    if len(names) != 1:
        several = f"the sweep has {len(names)}" if names else "the sweep has none"
        raise UserError(f"--gpu is missing: {several}; give the one to plan for, for example --gpu h200")
    return str(names.pop())


def sweep_points(
    name: str, cluster: Cluster, sets: Sequence[str] = (), evidence: Evidence = Evidence.SIMULATED
) -> tuple[Sweep, list[PlannedTrial]]:
    """Load the sweep called `name` for the cluster's GPU, and expand it, with skipped trials.

    Raises UserError, one line, for an invalid sweep, or if all of its points are impossible.
    """
    settings = [*sets, f"evidence={evidence}", f"gpu={cluster.gpu.name}", "rank=0"]
    sweep = load_sweep(name, settings, repeats=1)
    planned = expand(sweep, cluster.machine)
    if all(item.skipped for item in planned):
        reasons = [item.skipped.reason for item in planned if item.skipped]
        raise UserError(f"{sweep.where}: {reasons[0]}")
    return sweep, [_on(item, cluster) for item in planned]


def _on(item: PlannedTrial, cluster: Cluster) -> PlannedTrial:
    """Set the memory of the cluster's nodes."""
    return item.predicted_with(host_memory_bytes=cluster.host_memory_bytes)
