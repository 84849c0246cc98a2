"""The least host memory that a trial's model states take on one node, to refuse what cannot fit before it is tried.

A lower bound by the terms of ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5) and ZeRO-Offload (Ren et al.,
arXiv 2101.06840, section 4): activations, buffers and copies come on top, so what passes here may still not fit.
"""

from __future__ import annotations

from zerobench.spec.machine import Accelerator
from zerobench.spec.roles import num_servers
from zerobench.spec.sharding import state_shard_size
from zerobench.spec.strategy import STRATEGIES, paper_stage
from zerobench.spec.trial import Offload, Optimizer, Precision, TrialSpec

PROCESS_BYTES = 330 * 2**20
"""Resident size of a rank that has imported torch, DeepSpeed and transformers and holds nothing yet (measured,
CPU builds of torch 2.13: 329 to 351 MB)."""


def host_state_bytes(trial: TrialSpec, num_params: int, accelerator: Accelerator) -> int:
    """Bytes of host memory on one node: the processes, and the states that all its ranks hold there.

    Ranks on the CPU hold all their states in host memory, ranks on GPUs only what is offloaded to the CPU; what is
    offloaded to NVMe is in neither.
    """
    on_host = _states_on_cpu if accelerator is Accelerator.CPU else _states_offloaded
    return trial.gpus_per_node * (PROCESS_BYTES + round(num_params * on_host(trial)))


def _states_on_cpu(trial: TrialSpec) -> float:
    """Bytes per parameter of one rank that computes on the CPU, wherever its states are; the mean over the ranks."""
    stage, ranks = paper_stage(trial) or 0, state_shard_size(trial)
    size = _element_bytes(trial)
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


def _states_offloaded(trial: TrialSpec) -> float:
    """Bytes per parameter that one rank on a GPU offloads to the CPU.

    The optimizer takes fp32 gradients and, in fp32 training too, an fp32 copy of the weights with it:
    4 + 4 bytes beside the moments (deepspeed/runtime/zero/stage_1_and_2.py and stage3.py). FSDP2 keeps the same, and
    no parameters beside its masters.
    """
    states = 0.0
    if trial.offload_optimizer is Offload.CPU:
        states += (8 + _moment_bytes(trial)) / state_shard_size(trial)
    if trial.offload_param is Offload.CPU and trial.zero_stage is not None:
        states += _element_bytes(trial) / trial.world_size + _second_copy(trial)
    return states


def _second_copy(trial: TrialSpec) -> float:
    """The second copy of hpZ, which lies where the parameters do (partition_parameters.py, _partition_param_sec)."""
    return _element_bytes(trial) / trial.hpz_partition_size if trial.hpz_partition_size else 0.0


def _share(stage: int, from_stage: int, ranks: int) -> int:
    """Into how many parts a state is cut that is partitioned from `from_stage` on."""
    return ranks if stage >= from_stage else 1


def _element_bytes(trial: TrialSpec) -> int:
    return 4 if trial.precision is Precision.FP32 else 2


def _moment_bytes(trial: TrialSpec) -> int:
    return 0 if trial.optimizer is Optimizer.SGD else 8


def _optimizer_bytes(trial: TrialSpec) -> int:
    """Moments, and for 16-bit parameters fp32 master weights."""
    return _moment_bytes(trial) + (0 if trial.precision is Precision.FP32 else 4)
