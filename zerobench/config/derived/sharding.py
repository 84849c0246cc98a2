"""Which ranks divide what: groups of neighbours within the world, and the nodes that they lie on.

Ranks are numbered node by node, so that neighbours share one. DeepSpeed forms hpZ's groups of neighbours
(deepspeed/utils/groups.py, _create_zero_param_parallel_group), and so does a two-dimensional mesh of torch's.
"""

from collections.abc import Iterable

from zerobench.config.trial.trial import TrialSpec


def state_shard_size(trial: TrialSpec) -> int:
    """Ranks that divide the model states among them, where the strategy divides them: all, or a group of MiCS."""
    return trial.mics_shard_size or trial.world_size


def nodes_of_neighbours(trial: TrialSpec, size: int) -> int:
    """Nodes that the group of `size` neighbours lies on which the first rank is in."""
    return -(-size // trial.gpus_per_node)


def sub_groups(parts: Iterable[int], limit: int) -> tuple[int, ...]:
    """Elements of the groups of tensors' parts that stage 3 updates at a time (stage3.py, _create_fp16_sub_groups).

    A group is closed by the tensor with which it reaches `limit`, DeepSpeed's sub_group_size.
    """
    groups, filled = [], 0
    for part in parts:
        filled += part
        if filled >= limit:
            groups.append(filled)
            filled = 0
    return (*groups, filled) if filled else tuple(groups)
