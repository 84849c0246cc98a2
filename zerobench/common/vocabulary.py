"""Vocabulary of memory and trials: categories, places, phases, step kinds, statuses."""

from __future__ import annotations

from enum import StrEnum


class _Named(StrEnum):
    @property
    def words(self) -> str:
        """As people read it."""
        return self.value.replace("_", " ")


class Category(_Named):
    """The one name that a byte has. A category that a place or a run cannot have is absent there, and never 0."""

    PARAMETERS = "parameters"
    """The model's parameters, or this rank's partition of them."""
    GRADIENTS = "gradients"
    """Gradients of the parameters, or this rank's partition of them."""
    MASTER_WEIGHTS = "master_weights"
    """The fp32 copy of 16-bit parameters that the optimizer updates."""
    FIRST_MOMENT = "first_moment"
    """Adam's running mean of the gradients."""
    SECOND_MOMENT = "second_moment"
    """Adam's running mean of the squared gradients."""
    OTHER_OPTIMIZER_STATES = "other_optimizer_states"
    """Step counters and whatever else an optimizer keeps."""
    OPTIMIZER_STATES_ON_NVME = "optimizer_states_on_nvme"
    """NVMe only: swap files of the optimizer, which hold master weights and moments together."""
    REDUCE_BUFFERS = "reduce_buffers"
    """Buckets in which gradients are reduced, and what a compression hook keeps."""
    ALL_GATHER_BUFFERS = "all_gather_buffers"
    """Buckets in which updated parameters are gathered."""
    GATHERED_PARAMETERS = "gathered_parameters"
    """Parameters of other ranks, gathered to be used (stage 3, FSDP)."""
    PIPELINE_BUFFERS = "pipeline_buffers"
    """What passes between the stages of a pipeline: activations and gradients received, and gradients to be sent."""
    ACTIVATIONS = "activations"
    """What the forward pass keeps for the backward pass."""
    LOGITS_AND_LOSS = "logits_and_loss"
    """The output head's results and what the loss makes of them."""
    TEMPORARIES = "temporaries"
    """Results that one operation hands to the next, freed within the phase."""
    MODEL_BUFFERS = "model_buffers"
    """The module's registered buffers (rotary frequencies, masks)."""
    INPUTS = "inputs"
    """The batch: tokens, labels, positions."""
    KERNEL_WORKSPACE = "kernel_workspace"
    """CPU only: what an operation takes from torch's allocator and gives back before it ends, with no tensor ever seen
    to hold it (oneDNN's reordered copies), gloo's flat copies among them. No prediction knows it."""
    WORKSPACES = "workspaces"
    """CUDA only: what the matrix library works in, held by torch from the first product on."""
    ALLOCATOR_ROUNDING = "allocator_rounding"
    """What torch's caching allocators hand out beyond what was asked: blocks of 512 bytes on a CUDA device, powers of
    two of page-locked host memory."""
    PINNED_BUFFERS = "pinned_buffers"
    """Host only: page-locked buffers of the swapper and of offload."""
    STAGING = "staging"
    """Host only: copies on their way between device, host and NVMe."""
    REST_OF_PROCESS = "rest_of_process"
    """Host only: resident memory that is not in the tensors' totals (interpreter, libraries, stacks). Below zero where
    tensors were allocated and never touched."""
    UNATTRIBUTED = "unattributed"
    """Counted by the allocator, and nothing is known of it."""
    TOTAL = "total"
    """All categories of one place together, from a counter that the naming does not use."""


class Place(StrEnum):
    """Which memory a byte lies in."""

    DEVICE = "device"
    HOST = "host"
    NVME = "nvme"


class Phase(StrEnum):
    """Parts of a training step, after `init`, which ends when the engine stands."""

    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class StepKind(StrEnum):
    """`first` holds init and the first step, which makes the optimizer states; `steady` the last one."""

    FIRST = "first"
    STEADY = "steady"


class Status(_Named):
    """How a trial, or a rank, ended."""

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
