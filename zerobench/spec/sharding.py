"""Which ranks divide what: groups of neighbours within the world, and the nodes that they lie on.

Ranks are numbered node by node, so that neighbours share one. DeepSpeed forms hpZ's groups of neighbours
(deepspeed/utils/groups.py, _create_zero_param_parallel_group), and so does a two-dimensional mesh of torch's.
"""

from __future__ import annotations

from zerobench.spec.trial import TrialSpec


def state_shard_size(trial: TrialSpec) -> int:
    """Ranks that divide the model states among them, where the strategy divides them: all, or a group of MiCS."""
    return trial.mics_shard_size or trial.world_size


def nodes_of_neighbours(trial: TrialSpec, size: int) -> int:
    """Nodes that the group of `size` neighbours lies on which the first rank is in."""
    return -(-size // trial.gpus_per_node)
