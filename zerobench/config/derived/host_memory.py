"""The least host memory that a trial's model states take on one node, to refuse what cannot fit before it is tried.

A lower bound by the terms of ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5) and ZeRO-Offload (Ren et al.,
arXiv 2101.06840, section 4): activations, buffers and copies come on top, so what passes here may still not fit.
"""

from zerobench.config.derived.machine import Accelerator
from zerobench.config.derived.roles import num_servers
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.derived.strategy import STRATEGIES, paper_stage
from zerobench.config.trial.allocator import page_locked_bytes
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import Offload, Precision, TrialSpec

PROCESS_BYTES = 330 * 2**20
"""Resident size of a rank that has imported torch, DeepSpeed and transformers and holds nothing yet (measured,
CPU builds of torch 2.13: 329 to 351 MB)."""


def host_state_bytes(
    trial: TrialSpec, num_params: int, accelerator: Accelerator, most_rounded: int | None = None
) -> int:
    """Bytes of host memory on one node: the processes, and the states that all its ranks hold there.

    Ranks on the CPU hold all their states in host memory, ranks on GPUs only what is offloaded to the CPU; what is
    offloaded to NVMe is in neither. `most_rounded` is the largest page-locked tensor that torch rounds up; None: any.
    """
    if accelerator is Accelerator.CPU:
        states = round(num_params * _states_on_cpu(trial))
    else:
        states = _states_offloaded(trial, num_params, most_rounded)
    return trial.gpus_per_node * (PROCESS_BYTES + states)


def _states_on_cpu(trial: TrialSpec) -> float:
    """Bytes per parameter of one rank that computes on the CPU, wherever its states are; the mean over the ranks."""
    stage, ranks = paper_stage(trial) or 0, state_shard_size(trial)
    size = element_bytes(trial)
    parameters = 0.0 if trial.offload_param is Offload.NVME else size / _share(stage, 3, ranks)
    parameters += _second_copy(trial)
    gradients = size / _share(stage, 2, ranks)
    swapped = trial.offload_optimizer is Offload.NVME
    holders = num_servers(trial) or ranks  # where there is a server, no other rank holds optimizer states
    optimizer = 0.0 if swapped else _optimizer_bytes(trial) / _share(stage, 1, ranks) * holders / ranks
    return (parameters + gradients + optimizer) / _ranks_of_a_model(trial)


def _ranks_of_a_model(trial: TrialSpec) -> int:
    """Ranks that divide one copy of the model, and with it each of its states."""
    info = STRATEGIES.get(trial.strategy)
    return 1 if info is None or info.divides_batch else trial.world_size


def _states_offloaded(trial: TrialSpec, num_params: int, most_rounded: int | None) -> int:
    """Bytes that one rank on a GPU keeps on the host of what is offloaded to the CPU.

    Parameters at stage 3 are not page-locked in whole; what the optimizer has there is told below.
    """
    states = 0
    if trial.offload_optimizer is Offload.CPU:
        states += _optimizer_offloaded(trial, -(-num_params // state_shard_size(trial)), most_rounded)
    if trial.offload_param is Offload.CPU and trial.zero_stage is not None:
        states += round(num_params * (element_bytes(trial) / trial.world_size + _second_copy(trial)))
    return states


def _optimizer_offloaded(trial: TrialSpec, share: int, most_rounded: int | None) -> int:
    """Bytes of a share of so many parameters: fp32 weights and gradients, moments, and what is page-locked of them.

    The optimizer takes fp32 gradients and, in fp32 training too, an fp32 copy of the weights with it
    (deepspeed/runtime/zero/stage_1_and_2.py and stage3.py). FSDP2 keeps the same, each tensor by itself.

    Page-locked are at stages 1 and 2 weights and gradients, and the copy in 16 bits that the updated weights go back
    in; at stage 3 the gradients, those in fp32 in sub-groups, and those in 16 bits. Moments never are.
    """
    word, moments = 4 * share, round(_moment_bytes(trial) * share)
    locked_word = page_locked_bytes(word, most_rounded)
    half = 0 if trial.precision is Precision.FP32 else page_locked_bytes(2 * share, most_rounded)
    if trial.zero_stage in {1, 2} and _is_page_locked(trial):
        return 2 * locked_word + half + moments
    if trial.zero_stage == 3 and _is_page_locked(trial):
        return word + (locked_word if share <= SUB_GROUP_SIZE else word) + half + moments
    return 2 * word + moments


SUB_GROUP_SIZE = 10**9
"""DeepSpeed's own: parameters that stage 3 updates together (deepspeed/runtime/zero/config.py, sub_group_size). Where
there are several, or others are asked for, where they are cut is not known here, and nothing is taken for rounded."""


def _is_page_locked(trial: TrialSpec) -> bool:
    """Whether DeepSpeed's own settings hold: the generated configuration asks for page-locked memory."""
    changed = {"zero_optimization.offload_optimizer.pin_memory", "zero_optimization.sub_group_size"}
    return trial.ds_config_file is None and not changed & set(trial.ds_config)


def _second_copy(trial: TrialSpec) -> float:
    """The second copy of hpZ, which lies where the parameters do (partition_parameters.py, _partition_param_sec)."""
    return element_bytes(trial) / trial.hpz_partition_size if trial.hpz_partition_size else 0.0


def _share(stage: int, from_stage: int, ranks: int) -> int:
    """Into how many parts a state is cut that is partitioned from `from_stage` on."""
    return ranks if stage >= from_stage else 1


def element_bytes(trial: TrialSpec) -> int:
    """Of a weight in the trial's precision."""
    return 4 if trial.precision is Precision.FP32 else 2


def _moment_bytes(trial: TrialSpec) -> float:
    return OPTIMIZERS[trial.optimizer].state_bytes


def _optimizer_bytes(trial: TrialSpec) -> float:
    """Moments, and for 16-bit parameters fp32 master weights."""
    return _moment_bytes(trial) + (0 if trial.precision is Precision.FP32 else 4)
