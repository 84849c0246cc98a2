"""The machine that a sweep is laid out for: resolves `auto`, and limits what can run.

A plain value, so that a plan can be made for another machine; zerobench.launch.machine.this_machine detects the present
one.
"""

from enum import StrEnum

from zerobench.config.trial.base import Spec
from zerobench.config.trial.trial import Count, Positive

DEFAULT_CPU_RANKS = 2
"""Meaning of `auto` ranks per node without GPUs: the fewest that partition anything."""

MAX_RANKS = 2**20
"""Most ranks of a trial, ten times those of the largest machine that trains one model; more is taken for a mistake."""

CPU_RANKS_PER_CORE = 4
"""With more ranks per CPU core a trial would measure the scheduler."""


class Accelerator(StrEnum):
    """Type of device that a rank computes on."""

    CUDA = "cuda"
    CPU = "cpu"


class Machine(Spec):
    """Identical nodes that trials run on. Sizes are per node; None is unknown."""

    accelerator: Accelerator
    num_nodes: Positive = 1
    num_gpus: Count = 0
    """GPUs per node that trials may use."""
    gpu_names: tuple[str, ...] = ()
    device_memory_bytes: int | None = None
    """Memory of the smallest GPU."""
    host_memory_bytes: int | None = None
    """Memory per node that trials may use; a control group's limit counts."""
    cpu_cores: Positive = 1
    supports_bf16: bool = True
    bf16_slowdown: float | None = 1.0
    """Time of a product in bf16 relative to fp32 on the CPU; None if not measured."""
    supports_fp16: bool = True
    """Whether DeepSpeed accepts fp16 on the device; on CPUs only with native fp16 instructions."""
    has_libaio: bool = True
    """Whether DeepSpeed's asynchronous I/O, which NVMe offload needs, exists or can be built."""
    missing_kernels: tuple[str, ...] = ()
    """Kernels of DeepSpeed's optimizers that do not exist and cannot be built."""
    has_flash_attention: bool = False
    """Whether the package flash_attn is installed."""
    has_liger: bool = False
    """Whether the package liger_kernel is installed."""
    has_inductor: bool = True
    """Whether torch.compile finds the compilers for its generated code."""
    has_rpc: bool = True
    """Whether torch has torch.distributed.rpc."""
    has_tpu: bool = False
    """Whether a TPU is named or attached (zerobench.config.hardware.tpu)."""
    missing_packages: tuple[str, ...] = ()
    """Packages of strategies that are not installed; empty if unknown."""
    missing_environments: tuple[str, ...] = ()
    """Separate environments of strategies that have not been set up; empty if unknown."""

    @property
    def ranks_per_node(self) -> int:
        """Meaning of `auto` ranks on one node: one per GPU, or two without any."""
        return self.num_gpus if self.accelerator is Accelerator.CUDA else DEFAULT_CPU_RANKS

    @property
    def most_ranks_per_node(self) -> int:
        """Most ranks to start on one node: one per GPU, or a few per core."""
        return self.num_gpus if self.accelerator is Accelerator.CUDA else CPU_RANKS_PER_CORE * self.cpu_cores
