"""ZeRO++ and MiCS in closed form: hpZ's second copy of the parameters, and the collectives of both in their groups.

Sources: Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", arXiv 2306.10209,
section 3.2 (hpZ) and table 1 (volumes); Zhang et al., "MiCS", arXiv 2205.00119, section 3. In DeepSpeed the copy is
made when a parameter is released and lives until it is updated (runtime/zero/partition_parameters.py,
_partition_param_sec; stage3.py, invalidate_secondary_tensor): forward passes of later micro-batches gather from it too.
"""

from __future__ import annotations

from zerobench.config.derived.zero_paper import BytesPerParameter


def second_copy_bytes(num_params: int, hpz_partition_size: int | None, sizes: BytesPerParameter) -> float:
    """Bytes of one rank's part of the second copy, unrounded: 2P/H among H ranks in 16 bits; 0 without."""
    return 0.0 if hpz_partition_size is None else sizes.parameters * num_params / hpz_partition_size


def second_copy_elements(tensors: tuple[int, ...], world_size: int, hpz_partition_size: int) -> int:
    """Elements of one rank's part of the second copy of `tensors`, each padded to the number of all ranks before."""
    return sum(-(-tensor // world_size) * world_size // hpz_partition_size for tensor in tensors)
