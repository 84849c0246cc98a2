"""Groups of neighbouring ranks that divide states, and their nodes.

Ranks are numbered node by node, so that neighbours share one. DeepSpeed forms hpZ's groups from neighbours
(deepspeed/utils/groups.py, _create_zero_param_parallel_group), as does a two-dimensional mesh of torch's.
"""

from collections.abc import Iterable

from zerobench.config.trial.trial import TrialSpec


def state_shard_size(trial: TrialSpec) -> int:
    """Ranks that divide the model states, if the strategy divides them: all, or a group of MiCS."""
    return trial.mics_shard_size or trial.world_size


def nodes_of_neighbours(trial: TrialSpec, size: int) -> int:
    """Nodes of the first group of `size` neighbours."""
    return -(-size // trial.gpus_per_node)


def sub_groups(parts: Iterable[int], limit: int) -> tuple[int, ...]:
    """Elements of the groups of tensors' parts that stage 3 updates at a time (stage3.py, _create_fp16_sub_groups).

    The tensor with which a group reaches `limit`, DeepSpeed's sub_group_size, closes it.
    """
    groups, filled = [], 0
    for part in parts:
        filled += part
        if filled >= limit:
            groups.append(filled)
            filled = 0
    return (*groups, filled) if filled else tuple(groups)
