"""Vocabulary of memory and trials: categories, places, phases, step kinds, statuses."""

from __future__ import annotations

from enum import StrEnum


class _Named(StrEnum):
    @property
    def words(self) -> str:
        """Text for users."""
        return self.value.replace("_", " ")


class Category(_Named):
    """Category of a byte. One that a place or a run cannot have is absent, never 0."""

    PARAMETERS = "parameters"
    """The model's parameters, or this rank's partition of them."""
    GRADIENTS = "gradients"
    """Gradients of the parameters, or this rank's partition of them."""
    MASTER_WEIGHTS = "master_weights"
    """The fp32 copy of 16-bit parameters that the optimizer updates."""
    FIRST_MOMENT = "first_moment"
    """Running mean of the gradients (Adam)."""
    SECOND_MOMENT = "second_moment"
    """Running mean of the squared gradients (Adam)."""
    OTHER_OPTIMIZER_STATES = "other_optimizer_states"
    """Step counters and other optimizer states."""
    OPTIMIZER_STATES_ON_NVME = "optimizer_states_on_nvme"
    """NVMe only: swap files of the optimizer, with master weights and moments together."""
    REDUCE_BUFFERS = "reduce_buffers"
    """Buckets for gradient reduction, and states of a compression hook."""
    ALL_GATHER_BUFFERS = "all_gather_buffers"
    """Buckets for gathering updated parameters."""
    GATHERED_PARAMETERS = "gathered_parameters"
    """Parameters of other ranks, gathered for use (stage 3, FSDP)."""
    PIPELINE_BUFFERS = "pipeline_buffers"
    """Transfers between pipeline stages: received activations and gradients, and gradients to send."""
    ACTIVATIONS = "activations"
    """Saved by the forward pass for the backward pass."""
    LOGITS_AND_LOSS = "logits_and_loss"
    """Results of the output head, and tensors of the loss."""
    TEMPORARIES = "temporaries"
    """Results passed from one operation to the next, freed within the phase."""
    MODEL_BUFFERS = "model_buffers"
    """The module's registered buffers (rotary frequencies, masks)."""
    INPUTS = "inputs"
    """The batch: tokens, labels, positions."""
    KERNEL_WORKSPACE = "kernel_workspace"
    """CPU only: allocated from torch and freed within one operation, without an observed tensor (oneDNN's reordered
    copies, gloo's flat copies). Not predicted."""
    WORKSPACES = "workspaces"
    """CUDA only: workspaces of the matrix library, allocated by torch from the first product on."""
    ALLOCATOR_ROUNDING = "allocator_rounding"
    """Bytes that torch's caching allocators add to requests: blocks of 512 bytes on a CUDA device, powers of two for
    page-locked host memory."""
    PINNED_BUFFERS = "pinned_buffers"
    """Host only: page-locked buffers of the swapper and of offload."""
    STAGING = "staging"
    """Host only: copies in transit between device, host and NVMe."""
    REST_OF_PROCESS = "rest_of_process"
    """Host only: resident memory outside the tensors' totals (interpreter, libraries, stacks). Negative if allocated
    tensors were never touched."""
    UNATTRIBUTED = "unattributed"
    """Counted by the allocator, with unknown use."""
    TOTAL = "total"
    """All categories of one place, from an independent counter."""


class Place(StrEnum):
    """Memory that a byte is in."""

    DEVICE = "device"
    HOST = "host"
    NVME = "nvme"


class Phase(StrEnum):
    """Parts of a training step, after `init`, which ends when the engine is built."""

    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class StepKind(StrEnum):
    """`first` has init and the first step, which creates the optimizer states; `steady` the last one."""

    FIRST = "first"
    STEADY = "steady"


class Status(_Named):
    """Result of a trial or a rank."""

    COMPLETED = "completed"
    SKIPPED = "skipped"
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    OUT_OF_HOST_MEMORY = "out_of_host_memory"
    TIMEOUT = "timeout"
    LAUNCHER_FAULT = "launcher_fault"
    CRASH = "crash"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    """A job of higher priority took the nodes."""
    NODE_FAILURE = "node_failure"
    """A node went down."""
    CANCELLED = "cancelled"
    """Someone cancelled the job that ran it."""
