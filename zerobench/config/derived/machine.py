"""The machine that a sweep is laid out for: what `auto` means on it, and what cannot run there.

A plain value, so that a plan can be made for a machine that is not at hand; the one at hand is found out in
zerobench.launch.machine.this_machine.
"""

from enum import StrEnum

from zerobench.config.trial.base import Spec
from zerobench.config.trial.trial import Count, Positive

DEFAULT_CPU_RANKS = 2
"""Ranks per node that `auto` means where there is no GPU: the fewest that partition anything."""

MAX_RANKS = 2**20
"""Ranks that a trial may have, ten times those of the largest machine that trains one model; more is a mistake."""

CPU_RANKS_PER_CORE = 4
"""Ranks on one CPU core beyond which a trial would measure the scheduler."""


class Accelerator(StrEnum):
    """What a rank computes on."""

    CUDA = "cuda"
    CPU = "cpu"


class Machine(Spec):
    """The nodes that trials run on, all alike. Sizes are those of one node; None is unknown."""

    accelerator: Accelerator
    num_nodes: Positive = 1
    num_gpus: Count = 0
    """GPUs of one node that trials may use."""
    gpu_names: tuple[str, ...] = ()
    device_memory_bytes: int | None = None
    """Memory of the smallest GPU."""
    host_memory_bytes: int | None = None
    """Memory of one node that trials may use; a control group's limit counts."""
    cpu_cores: Positive = 1
    supports_bf16: bool = True
    bf16_slowdown: float | None = 1.0
    """How many times longer the processor takes for a product in bf16 than in fp32; None where nobody has tried it."""
    supports_fp16: bool = True
    """Whether DeepSpeed takes fp16 on the device; on CPUs only with native fp16 instructions."""
    has_libaio: bool = True
    """Whether DeepSpeed's asynchronous I/O, which NVMe offload needs, is there or can be built."""
    missing_kernels: tuple[str, ...] = ()
    """Kernels of DeepSpeed's optimizers that are not there and cannot be built."""
    has_flash_attention: bool = False
    """Whether the package flash_attn is installed."""
    has_liger: bool = False
    """Whether the package liger_kernel is installed."""
    has_inductor: bool = True
    """Whether torch.compile finds the compilers that it generates code for."""
    has_rpc: bool = True
    """Whether torch has torch.distributed.rpc."""
    has_tpu: bool = False
    """Whether a TPU is named or attached there (zerobench.config.hardware.tpu)."""
    missing_packages: tuple[str, ...] = ()
    """Packages of strategies that are not installed there; none where nobody knows."""
    missing_environments: tuple[str, ...] = ()
    """Environments of their own that some strategies need and nobody made there; none where nobody knows."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks on one node that `auto` means: one a GPU, or two without any."""
        return self.num_gpus if self.accelerator is Accelerator.CUDA else DEFAULT_CPU_RANKS

    @property
    def most_ranks_per_node(self) -> int:
        """Ranks that are started on one node at most: one a GPU, or a few a core."""
        return self.num_gpus if self.accelerator is Accelerator.CUDA else CPU_RANKS_PER_CORE * self.cpu_cores
