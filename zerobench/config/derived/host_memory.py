"""Least host memory of a trial's model states on one node, to refuse what cannot fit before it is tried.

A lower bound by the terms of ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5) and ZeRO-Offload (Ren et al., arXiv
2101.06840, section 4): activations, buffers and copies come on top, so a trial that passes may still not fit.
"""

from zerobench.config.derived.machine import Accelerator
from zerobench.config.derived.roles import num_servers
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.derived.strategy import STRATEGIES, paper_stage
from zerobench.config.trial.allocator import page_locked_bytes
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import Offload, Precision, TrialSpec

PROCESS_BYTES = 330 * 2**20
"""Resident size of a rank that has imported torch, DeepSpeed and transformers and has allocated nothing (measured, CPU
builds of torch 2.13: 329 to 351 MB)."""


def host_state_bytes(
    trial: TrialSpec, num_params: int, accelerator: Accelerator, most_rounded: int | None = None
) -> int:
    """Bytes of host memory on one node: its processes, and the states that its ranks keep there.

    Ranks on the CPU keep all their states in host memory, ranks on GPUs only those offloaded to the CPU; states
    offloaded to NVMe are in neither. `most_rounded`: largest page-locked tensor that torch rounds up; None: any.
    """
    if accelerator is Accelerator.CPU:
        states = round(num_params * _states_on_cpu(trial))
    else:
        states = _states_offloaded(trial, num_params, most_rounded)
    return trial.gpus_per_node * (PROCESS_BYTES + states)


def _states_on_cpu(trial: TrialSpec) -> float:
    """Bytes per parameter of one rank that computes on the CPU, as the mean over the ranks."""
    stage, ranks = paper_stage(trial) or 0, state_shard_size(trial)
    size = element_bytes(trial)
    parameters = 0.0 if trial.offload_param is Offload.NVME else size / _share(stage, 3, ranks)
    parameters += _second_copy(trial)
    gradients = size / _share(stage, 2, ranks)
    swapped = trial.offload_optimizer is Offload.NVME
    optimizer_bytes = _moment_bytes(trial) + (0 if trial.precision is Precision.FP32 else 4)  # and master weights
    holders = num_servers(trial) or ranks  # where there is a server, no other rank holds optimizer states
    optimizer = 0.0 if swapped else optimizer_bytes / _share(stage, 1, ranks) * holders / ranks
    info = STRATEGIES.get(trial.strategy)
    model_ranks = 1 if info is None or info.divides_batch else trial.world_size  # they divide each of its states
    return (parameters + gradients + optimizer) / model_ranks


def _states_offloaded(trial: TrialSpec, num_params: int, most_rounded: int | None) -> int:
    """Bytes of states offloaded to the CPU by one rank on a GPU.

    Parameters at stage 3 are not page-locked as a whole; for the optimizer see `_optimizer_offloaded`.
    """
    states = 0
    if trial.offload_optimizer is Offload.CPU:
        states += _optimizer_offloaded(trial, -(-num_params // state_shard_size(trial)), most_rounded)
    if trial.offload_param is Offload.CPU and trial.zero_stage is not None:
        states += round(num_params * (element_bytes(trial) / trial.world_size + _second_copy(trial)))
    return states


def _optimizer_offloaded(trial: TrialSpec, share: int, most_rounded: int | None) -> int:
    """Bytes of a share of parameters: fp32 weights and gradients, moments, and page-locked copies.

    The optimizer has fp32 gradients and, in fp32 training too, an fp32 copy of the weights
    (deepspeed/runtime/zero/stage_1_and_2.py and stage3.py). FSDP2 keeps the same, each tensor by itself.

    At stages 1 and 2, weights, gradients and the 16-bit copy of updated weights are page-locked; at stage 3, the
    gradients: fp32 ones in sub-groups, and 16-bit ones. Moments never are.
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
"""DeepSpeed's default number of parameters that stage 3 updates together (deepspeed/runtime/zero/config.py,
sub_group_size). With several sub-groups, or another size, their bounds are unknown here, and nothing is rounded up."""


def _is_page_locked(trial: TrialSpec) -> bool:
    # The generated configuration requests page-locked memory; a user's file or keys may change that
    changed = {"zero_optimization.offload_optimizer.pin_memory", "zero_optimization.sub_group_size"}
    return trial.ds_config_file is None and not changed & set(trial.ds_config)


def _second_copy(trial: TrialSpec) -> float:
    # The second copy of hpZ is placed with the parameters (partition_parameters.py, _partition_param_sec)
    return element_bytes(trial) / trial.hpz_partition_size if trial.hpz_partition_size else 0.0


def _share(stage: int, from_stage: int, ranks: int) -> int:
    """Number of parts of a state that is partitioned from stage `from_stage` on."""
    return ranks if stage >= from_stage else 1


def element_bytes(trial: TrialSpec) -> int:
    """Bytes of one weight in the trial's precision."""
    return 4 if trial.precision is Precision.FP32 else 2


def _moment_bytes(trial: TrialSpec) -> float:
    return OPTIMIZERS[trial.optimizer].state_bytes
