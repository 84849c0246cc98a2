"""What offloading keeps in host memory beside the states that the ZeRO papers move there."""

from __future__ import annotations

from collections.abc import Iterator

from zerobench.ds_config.case import Case, size
from zerobench.ds_config.reading import get
from zerobench.spec.trial import Offload

_SMALLEST_SWAP_BYTES = 2**20
"""Smaller tensors stay in memory (runtime/swap_tensor/utils.py, MIN_AIO_BYTES)."""


def host_departures(case: Case) -> Iterator[str]:
    """runtime/zero/stage_1_and_2.py, __init__ (param_buffer_of_bit16_for_cpu_offload_groups, temp_grad_buffer_...) and
    initialize_optimizer_states; stage3.py, initialize_optimizer_states and _create_param_groups_fp16_flat_cpu_memory.
    """
    fp32_gradients = size(case.share, 4)
    if case.offload_optimizer is not Offload.NONE and case.stage < 3:
        yield (
            "the host holds for the whole run, beside master weights and moments, the gradients of the partition in "
            f"fp32 ({fp32_gradients}) and a staging copy of its updated parameters ({size(case.share, case.element)})"
        )
        yield "host and device each keep a buffer for the gradient of the largest parameter for the whole run"
    elif case.offload_optimizer is Offload.CPU:
        yield (
            "the host holds for the whole run, beside master weights and moments, the gradients of the partition in "
            f"fp32 too ({fp32_gradients})"
        )
    if case.offload_param is Offload.CPU:
        yield (
            f"the partition of the parameters lies in one host buffer ({size(case.share, case.element)}), page-locked "
            "whatever pin_memory says"
        )


def nvme_departures(case: Case) -> Iterator[str]:
    """runtime/swap_tensor/optimizer_utils.py, OptimizerSwapper; partitioned_param_swapper.py, _configure_aio;
    runtime/zero/stage3.py, _create_param_groups_fp16_flat_cpu_memory.
    """
    on_nvme = Offload.NVME in {case.offload_optimizer, case.offload_param}
    if case.stage != 3 or not on_nvme:
        return
    if case.offload_optimizer is Offload.NVME:
        count = int(case.zero("offload_optimizer.buffer_count"))
        yield (
            f"swapping the optimizer's states takes {count} page-locked host buffers of one sub-group in fp32 "
            f"({size(count * case.sub_group, 4)}) for the whole run"
        )
    if case.offload_param is Offload.NVME:
        count, elements = int(case.zero("offload_param.buffer_count")), int(case.zero("offload_param.buffer_size"))
        yield (
            f"swapping the parameters takes {count} page-locked host buffers of {elements:,} elements "
            f"({size(count * elements, case.element)}) for the whole run"
        )
        if kept := min(int(case.zero("offload_param.max_in_cpu")), case.share):
            yield f"up to {kept:,} elements of the partition stay in host memory (max_in_cpu) and never reach the NVMe"
    smallest = max(_SMALLEST_SWAP_BYTES, int(get(case.config, "aio.block_size")))
    yield f"tensors smaller than {size(smallest, 1)} are not swapped and stay in memory"
