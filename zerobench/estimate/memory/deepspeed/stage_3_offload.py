"""Stage 3's host memory and swap files, where parameters or optimizer states leave the device.

runtime/zero/stage3.py (_create_fp32_partitions, initialize_optimizer_states, _setup_for_real_optimizer) and
runtime/swap_tensor (optimizer_utils.py, partitioned_param_swapper.py) of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.common.vocabulary import Category, StepKind
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import Offload
from zerobench.estimate.memory.deepspeed.setting import Instants, Setting, constant
from zerobench.estimate.memory.deepspeed.swapping import aligned, is_swappable, swaps_optimizer
from zerobench.estimate.memory.terms.terms import Bytes, Terms, add, of_elements


def host(setting: Setting, step: StepKind) -> Instants:
    """Bytes in host memory: offloaded states, and the page-locked buffers of the swappers."""
    always = add(_parameters_on_host(setting), _param_buffers(setting))
    if not setting.offloads:
        return constant(always)
    element = setting.case.gradient_element
    gradients = setting.share(Category.GRADIENTS, element, setting.sharded, "as they were reduced")
    if swaps_optimizer(setting):
        return constant(add(always, gradients, optimizer_buffers(setting)))
    moved = setting.moved
    in_fp32 = setting.share(Category.GRADIENTS, 4, sum(moved), "in fp32, for the update")
    built = add(always, in_fp32, gradients, setting.master_and_moments(moved, None))
    updated = add(built, setting.moments(moved))
    held = built if step is StepKind.FIRST else updated
    update = setting.update_temporaries([max(moved)], on_host=True) if moved else {}
    return Instants((built,), held, held, held, held, (), held, (add(updated, update), updated))


def kept(setting: Setting, step: StepKind | None) -> Terms:
    """Device memory of the sub-groups that are not offloaded; `step` None is before the first step's end."""
    if not setting.kept:
        return Terms()
    what = f"in fp32, of {len(setting.kept)} of {len(setting.sub_groups)} sub-groups (offload_optimizer.ratio)"
    source = "stage3.py, _create_fp32_partitions"
    states = (
        of_elements(category, 4, sum(setting.kept), what, source)
        for category in (Category.GRADIENTS, Category.MASTER_WEIGHTS)
    )
    return add(*states, {} if step is None else setting.moments(setting.kept))


def kept_updates(setting: Setting, before: Bytes, step: StepKind) -> list[Bytes]:
    """Each of them as it is updated by the torch.optim.AdamW that stage 3 has beside DeepSpeedCPUAdam."""
    instants: list[Bytes] = []
    for number, group in enumerate(setting.kept, 1):
        made = setting.moments(setting.kept[:number]) if step is StepKind.FIRST else {}
        instants.append(add(before, made, setting.update_temporaries([group], by=Optimizer.ADAMW)))
    return instants


def nvme(setting: Setting, step: StepKind) -> Instants:
    """Bytes in swap files: 16-bit parameters; master weights, and from the first update on gradients and moments."""
    parameters = {Category.PARAMETERS: setting.case.element * swapped_parameters(setting)}
    if not swaps_optimizer(setting):
        return constant(parameters)
    files = Category.OPTIMIZER_STATES_ON_NVME
    gradients = 4 * sum(part for part in setting.parts if is_swappable(setting, part, 4))
    moments = sum(setting.moments(setting.sub_groups).values())
    built = add(parameters, {files: 4 * setting.sharded})
    end = add(built, {files: gradients + moments})
    held = built if step is StepKind.FIRST else end
    return Instants((built,), held, held, held, held, (), held, (end,))


def kept_on_host(setting: Setting) -> int:
    """Elements of parameters up to max_in_cpu, whole sub-groups (_create_param_groups_fp16_flat_cpu_memory)."""
    return min(int(setting.case.zero("offload_param.max_in_cpu")), setting.sharded)


def swapped_parameters(setting: Setting) -> int:
    """Elements of this rank's parameters that lie in swap files."""
    return sum(setting.parts[number] for number in swapped_numbers(setting, setting.tensors))


def swapped_numbers(setting: Setting, sizes: Sequence[int]) -> frozenset[int]:
    """Return the numbers of the parameters of so many elements that lie there."""
    case = setting.case
    if case.offload_param is not Offload.NVME or kept_on_host(setting) >= setting.sharded:
        return frozenset()
    parts = (-(-size // case.world_size) for size in sizes)
    return frozenset(number for number, part in enumerate(parts) if is_swappable(setting, part, case.element))


def _parameters_on_host(setting: Setting) -> Bytes:
    """One page-locked buffer of the partition under cpu offload; under nvme what is kept or too small to swap."""
    if setting.case.offload_param is Offload.NONE:
        return {}
    unswapped = setting.sharded - swapped_parameters(setting)
    elements = max(unswapped, kept_on_host(setting)) if swapped_parameters(setting) else setting.sharded
    return setting.share(Category.PARAMETERS, setting.case.element, elements)


def _param_buffers(setting: Setting) -> Bytes:
    """partitioned_param_swapper.py, _configure_aio; and a buffer of the largest sub-group to swap out from."""
    if setting.case.offload_param is not Offload.NVME:
        return {}
    case = setting.case
    each = aligned(setting, int(case.zero("offload_param.buffer_size")), case.element)
    count = int(case.zero("offload_param.buffer_count"))
    reuse = aligned(setting, setting.sub_group, case.element) if swapped_parameters(setting) else 0
    source = "partitioned_param_swapper.py, _configure_aio"
    return add(
        of_elements(Category.PINNED_BUFFERS, case.element, count * each, f"{count} buffers to swap parameters", source),
        of_elements(Category.PINNED_BUFFERS, case.element, reuse, "a buffer to swap a sub-group of them out", source),
    )


def optimizer_buffers(setting: Setting) -> Bytes:
    """Buffers of the largest sub-group in fp32."""
    count = int(setting.case.zero("offload_optimizer.buffer_count"))
    what, source = f"{count} buffers to swap optimizer states", "swap_tensor/optimizer_utils.py, OptimizerSwapper"
    elements = count * aligned(setting, setting.sub_group, 4)
    return of_elements(Category.PINNED_BUFFERS, 4, elements, what, source)
