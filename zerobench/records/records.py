"""Files of a trial: raw measurements with units in their names, and a schema version.

A rank writes `rank_<r>.json` (RankRecord); the runner writes `record.json` (TrialRecord). Means, GiB, MFU and errors
are derived when reporting. Not available is None, never 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind, _Named

SCHEMA_VERSION = 1

Document = TypeVar("Document", bound=BaseModel)


def read_or_none(path: Path, model: type[Document]) -> Document | None:
    """Read the document at `path`; None if missing or incomplete: being written, or its writer was killed."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


class Record(BaseModel):
    """Strict base of all documents read from disk."""

    # A loss may diverge to NaN: it is kept as "NaN", which reads back as a float, where null would not.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Holder(_Named):
    """Owner that keeps a tensor alive: it is freed when its last holder releases it."""

    AUTOGRAD = "autograd"
    """The autograd graph: saved for backward in a module's forward pass."""
    ENGINE = "engine"
    """DeepSpeed, FSDP, DDP or Horovod: partitions, buckets, gathered parameters."""
    OPTIMIZER = "optimizer"
    """The optimizer's states."""
    MODEL = "model"
    """A module's parameter, its gradient, or a buffer."""
    LOOP = "loop"
    """The training loop: the batch, and the model's output while a variable refers to it."""
    OPERATION = "operation"
    """The running pass, between one operation and the next."""
    LIBRARY = "library"
    """A library used by torch: workspaces of matrix products."""


class PeakPart(Record):
    """Tensors of one category at a peak with the same module and the same holders."""

    total_bytes: int
    count: int
    """Number of storages."""
    site: str | None = None
    """Function that allocated most of them, or the node of the backward pass; None if not observed."""
    module: str | None = None
    """Class of the module that saved them for backward, else of the one that allocated them."""
    path: str | None = None
    """Name of that module within the model, `*` for the numbers of layers; None if only the class is known."""
    holders: list[Holder] = Field(default_factory=list)
    """Empty without evidence; with several, each must release them."""


class MemoryRow(Record):
    """Bytes of one category in one place over one phase, on one rank."""

    step: StepKind
    phase: Phase
    place: Place
    category: Category
    live_bytes: int
    """At the end of the phase."""
    at_peak_bytes: int | None
    """At the instant of this place's peak in the phase; categories sum to the total's."""
    own_peak_bytes: int | None
    """Largest value of the category itself within the phase."""
    at_tensor_peak_bytes: int | None = None
    """At the instant of the peak without `kernel_workspace`, which is left out: for comparison with predictions, which
    cannot know it. None if the two cannot be separated."""
    largest: list[PeakPart] | None = None
    """Largest parts of `at_peak_bytes`, in order of size, without smaller ones. None in older records and if only the
    total was observed."""

    @property
    def foreseeable_peak_bytes(self) -> int | None:
        """Bytes at the peak that a prediction can know."""
        return self.at_peak_bytes if self.at_tensor_peak_bytes is None else self.at_tensor_peak_bytes


class MemoryCourse(Record):
    """Device memory of one rank during one phase, at a few instants that include the peak."""

    step: StepKind
    phase: Phase
    num_events: int
    """Allocations and frees within the phase."""
    events: list[int]
    """Number of events before each instant, in order."""
    sizes_bytes: dict[Category, list[int]]
    """Bytes at each instant, as requested for tensors; only the emulator's and the simulator's blocks are rounded."""
    sites: dict[Category, str]
    """Allocation site of most bytes of the category: file and function, or the autograd node."""


class MemoryCourses(Record):
    """Memory of a rank during start-up and a steady step."""

    schema_version: int = SCHEMA_VERSION
    trial_id: str
    rank: int
    phases: list[MemoryCourse]


class ProcessMemory(Record):
    """Memory of the rank's process at the end of a phase, from the kernel."""

    step: StepKind
    phase: Phase
    rss_bytes: int
    pss_bytes: int | None
    peak_rss_bytes: int | None
    """Largest resident size within the phase (VmHWM, reset at its start)."""
    malloc_bytes: int | None
    """Bytes allocated by glibc's malloc (mallinfo2), independent of tensors."""
    pinned_bytes: int | None
    """Page-locked host memory of torch."""


class DeviceMemory(Record):
    """Figures of the device's allocator and driver at the end of a phase (CUDA only)."""

    step: StepKind
    phase: Phase
    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    alloc_retries: int
    nvml_used_bytes: int | None
    nvml_process_bytes: int | None
    peak_occupied_bytes: int | None = None
    """Peak of non-empty segments: reserved memory that the allocator cannot release before an allocation fails. From
    its history; an upper bound if segments are expandable or the history is incomplete. None in older records."""

    @property
    def held_bytes(self) -> int:
        """Peak of memory that the allocator needed in the phase."""
        if self.peak_occupied_bytes is not None:
            return self.peak_occupied_bytes
        return max(self.peak_reserved_bytes, self.reserved_bytes)


class NvmeTraffic(Record):
    """Bytes between the rank and block devices in a phase (the kernel's /proc/self/io)."""

    step: StepKind
    phase: Phase
    read_bytes: int
    written_bytes: int
    seconds: float


class PhaseMark(Record):
    """Begin and end of a phase, to align sampled curves with it."""

    step_index: int
    """From 0; -1 for init."""
    kind: str
    """`first`, `warmup`, `timed`, `memory` or `communication`."""
    phase: Phase
    start_s: float
    """Unix time."""
    end_s: float


class StepTime(Record):
    """One timed step, device-synchronised at its ends and between its phases."""

    step_s: float
    """The whole optimizer step, forward to update, over all micro-steps."""
    forward_s: float | None
    """None, like the next two, if a step has no separate phases: TensorFlow's is one graph."""
    backward_s: float | None
    optimizer_s: float | None
    wait_s: float | None = None
    """Waiting for other ranks within the step, without transfers; for a pipeline's stage everything besides forward,
    backward and update, receiving included. None if the strategy does not measure it."""


class StepBatch(Record):
    """Purpose and tokens of one optimizer step."""

    kind: str
    """`first`, `warmup`, `memory`, `timed` or `communication`."""
    tokens: int
    """Tokens of the step over all ranks: its global batch."""
    device_peak_bytes: int | None = None
    """Peak of tensors on this rank's device within the step; None without a ledger."""


class CommunicationTime(Record):
    """Time of one step's collectives, sends and receives on this rank, from the profiler
    (rank/training/communication.py).
    """

    step_s: float
    """The whole step under the profiler, which slows it down: shares are relative to this."""
    calls: int
    """Collectives, sends and receives; 0 if no library reported any."""
    in_flight_s: float
    """Time with at least one in flight, from its call to its end, waiting for other ranks included."""
    exposed_s: float
    """Part of that in which the rank computed nothing."""


class CollectiveTraffic(Record):
    """One kind of collective of this rank in a phase, over all of its calls."""

    step: StepKind
    phase: Phase
    kind: str
    """`all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`, `all_to_all`, `send`, `recv`, `barrier`."""
    group_size: int
    """Ranks of the process group."""
    num_nodes: int | None = None
    """Nodes of the group's ranks; None if unknown, as in older records."""
    calls: int
    message_bytes: int
    """Bytes of the whole message: what is reduced, or what is gathered from all ranks together. Bytes on a rank's link
    depend on the algorithm (a ring moves 2 (N-1)/N of it in an all-reduce, (N-1)/N in the others)."""


class CountedFlops(Record):
    """Floating-point operations of matrix products and attention kernels in a phase, recomputed ones included
    (torch.utils.flop_counter's formulas).
    """

    step: StepKind
    phase: Phase
    flops: int


class ContextMemory(Record):
    """Device memory outside torch, from the driver's readings around the events that allocate it."""

    before_bytes: int | None
    """In use on the device before this trial: other processes."""
    context_bytes: int | None
    """CUDA context and loaded kernels."""
    collectives_bytes: int | None
    """NCCL at its first collectives."""


class Standing(Record):
    """Memory of a device at the instant when its allocator failed."""

    allocated_bytes: int
    """Allocated by torch's allocator."""
    reserved_bytes: int
    """Reserved by it from the driver; the difference to `allocated_bytes` is free in pieces."""
    largest_free_bytes: int
    """The largest of those pieces."""
    by_category: dict[Category, int] = Field(default_factory=dict)
    """Empty, like the next two, without a ledger; bytes without a category are unattributed."""
    by_module: dict[str, int] = Field(default_factory=dict)
    """By the class of the model's module: its parameters and gradients, and allocations of its code."""
    by_site: dict[str, int] = Field(default_factory=dict)
    """By the allocating function."""
    by_holder: dict[str, int] = Field(default_factory=dict)
    """By holder, with the module that saved it for autograd; empty in older records."""

    def is_fragmented(self, bytes_asked: int, bytes_free: int) -> bool:
        """Return whether the request would have fit in total, but not in one piece."""
        return self.reserved_bytes - self.allocated_bytes + bytes_free >= bytes_asked


class HostStanding(Record):
    """Host memory of one rank at one instant."""

    at: str
    """The instant, in words."""
    is_last_account: bool = False
    """Whether it was recorded some time before the end, because the kernel kills without notice."""
    by_category: dict[Category, int]
    """With the rest of the process, if the kernel was queried."""
    by_module: dict[str, int] = Field(default_factory=dict)
    """As in `Standing`, for tensors only."""
    by_site: dict[str, int] = Field(default_factory=dict)
    by_holder: dict[str, int] = Field(default_factory=dict)
    address_space_bytes: int | None = None
    """Address space of the process; None if only memory limits it."""
    address_limit_bytes: int | None = None
    """Its limit (`ulimit -v`)."""

    @property
    def total_bytes(self) -> int:
        return sum(self.by_category.values())

    @property
    def tensor_bytes(self) -> int:
        """Bytes of tensors."""
        return self.total_bytes - self.by_category.get(Category.REST_OF_PROCESS, 0)


class Failure(Record):
    """Reason why a rank, or a trial, did not complete."""

    phase: Phase | None = None
    step_index: int | None = None
    rank: int | None = None
    message: str
    """One line for users."""
    exception: str | None = None
    traceback: str | None = None
    bytes_asked: int | None = None
    bytes_free: int | None = None
    bytes_needed: int | None = None
    """Total device memory that the rank needs: its emulated GPU had less, and the trial was repeated on one large
    enough. The record's memory is of that repetition."""
    standing: Standing | None = None
    """Device memory at the failed request. None in older records."""
    host_standing: HostStanding | None = None
    """Host memory at the failed request, or from the last report before the kernel's kill."""
    evidence: str | None = None
    """Evidence of the cause, for example the kernel's oom_kill counter or the exit signal."""
    stacks: dict[str, str] = Field(default_factory=dict)
    """On timeout: Python stacks of each rank."""


class ParameterTensor(Record):
    """Exact parameter counts of the model as built."""

    total: int
    trainable: int
    by_component: dict[str, int]
    """token_embeddings, positional_embeddings, attention, mlp, norms, head."""


class Compilation(Record):
    """Work of torch.compile in one rank's process."""

    backend: str
    seconds: float
    """Time in dynamo and its backend, in which the rank did nothing else; all before timed steps, except for
    compilation within them."""
    num_graphs: int
    """Compiled graphs. Identical blocks share one."""
    num_graph_breaks: int
    """Places where tracing had to stop and restart."""
    num_graphs_in_timed_steps: int
    timed_peak_allocated_bytes: int | None
    """The allocator's peak over the timed steps, which run compiled code; None on a CPU."""


class CheckpointTransfer(Record):
    """One save or load of a checkpoint by one rank."""

    kind: str
    """`save` or `load`."""
    step: int
    """Optimizer steps in the checkpoint."""
    start_s: float
    """Unix time, when all ranks were ready."""
    seconds: float
    """Until the last rank had finished and, for a save, every file was on the disk (fsync)."""
    own_s: float
    """Until this rank had finished its part; a save had then passed it to the kernel."""
    size_bytes: int
    """All files of the checkpoint, over all ranks."""
    rss_before_bytes: int | None
    """Resident memory of the process before; None if malloc keeps freed memory, which makes a peak meaningless."""
    rss_peak_bytes: int | None
    """Peak within it (VmHWM)."""
    device_before_bytes: int | None
    """Allocated by torch on the GPU before; None on a CPU."""
    device_peak_bytes: int | None
    """Peak within it."""
    page_cache_dropped: bool | None = None
    """For a load: whether the kernel was first advised to drop the cached files, so that they are read from the disk
    (posix_fadvise(2), POSIX_FADV_DONTNEED)."""


class RankRecord(Record):
    """Measurements of one rank."""

    schema_version: int = SCHEMA_VERSION
    trial_id: str
    rank: int
    local_rank: int
    world_size: int
    role: str = "worker"
    """`worker`, or `server`: weights and optimizer states for the workers. On a server, the phase `backward` receives
    gradients, `step` updates and sends weights; it has no `forward`."""
    hostname: str
    node: int | None = None
    """Index of its node within the trial: matches it to the node's samples, independent of hostnames. None in older
    records, which are matched by hostname."""
    pid: int
    status: Status
    failure: Failure | None = None
    device_type: str
    device_name: str
    device_uuid: str | None = None
    device_capacity_bytes: int | None = None
    """Memory that CUDA hands out on its device (cudaMemGetInfo's total), less than NVML's total. None on a CPU, in
    predictions, whose capacity is the catalogue's, and in older records."""
    backend: str | None = None
    parameters: ParameterTensor | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    """Releases loaded in its process, by package: torch, deepspeed, transformers, peft, accelerate. Empty in older
    records, by formula, and for ranks without torch."""
    micro_batch_size: int
    flops_per_step: float | None = None
    """Model FLOPs of this rank for one optimizer step, by the formula named in `flops_formula`."""
    flops_formula: str | None = None
    losses: list[float] = Field(default_factory=list)
    """Global mean loss of every step, the first one included, in order."""
    grad_norms: list[float | None] = Field(default_factory=list)
    """Global norm of the gradients of every step, unscaled and before clipping, in order; None for a step in which it
    was not computed, infinite for one that loss scaling skipped. Empty on a rank that does not know it (a server's
    workers, the stages of a driven pipeline) and in older records."""
    staleness_steps: list[int] | None = None
    """On a server: for each gradient in order of application, number of updates between the weights that it was
    computed on and those that it was applied to; None without workers."""
    compilation: Compilation | None = None
    """None without compilation."""
    checkpoints: list[CheckpointTransfer] = Field(default_factory=list)
    """Its saves, or its load, in order."""
    killed_at_s: float | None = None
    """When it was killed at the trial's request (`checkpoint.fault`), Unix time; its record is of the moment before."""
    learning_rates: list[float] = Field(default_factory=list)
    """Learning rate of this rank's optimizer in every step, read back from it; empty without an optimizer."""
    batches: list[StepBatch] = Field(default_factory=list)
    """Every step, the first one included, in order. Empty in records from before batch ramps, and for users' own
    scripts."""
    step_times: list[StepTime] = Field(default_factory=list)
    marks: list[PhaseMark] = Field(default_factory=list)
    memory: list[MemoryRow] = Field(default_factory=list)
    process_memory: list[ProcessMemory] = Field(default_factory=list)
    host_peak: HostStanding | None = None
    """Host memory of its tensors at their peak: for tracked training, and for predictions with a given node memory."""
    device_memory: list[DeviceMemory] = Field(default_factory=list)
    nvme: list[NvmeTraffic] = Field(default_factory=list)
    collectives: list[CollectiveTraffic] = Field(default_factory=list)
    communication: list[CommunicationTime] = Field(default_factory=list)
    """One for each step under the profiler."""
    flops: list[CountedFlops] = Field(default_factory=list)
    step_trace: str | None = None
    """For a rank whose GPU is not present: the operations of its steady step, in order, packed
    (zerobench.estimate.clock.trace)."""
    context: ContextMemory | None = None
    mapped_peak_bytes: int | None = None
    """For a rank that loaded its weights: peak of mapped files meanwhile, beyond those before. Page cache, which ranks
    of a node share and the kernel can reclaim."""
    effective_config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the engine, read back from it after it was built."""
    departures: list[str] = Field(default_factory=list)
    """Differences of the engine's memory from the ZeRO paper for this configuration, in sentences."""
    notes: list[str] = Field(default_factory=list)
    """Missing figures with their reasons, and warnings that a reader of the figures needs."""


class NvmlDevice(Record):
    """One device during the trial, from the sampler."""

    gpu_uuid: str
    name: str
    index: int
    total_bytes: int | None
    reserved_bytes: int | None
    baseline_used_bytes: int | None
    peak_used_bytes: int | None
    energy_joules: float | None
    mean_power_watts: float | None
    other_processes: list[str] = Field(default_factory=list)
    """`pid name bytes` of processes found on the device before the trial started."""


class NvmlSummary(Record):
    """NVML sampler of one node."""

    hostname: str
    node: int | None = None
    """As in RankRecord."""
    available: bool
    reason: str | None = None
    """Reason why nothing, or not everything, was sampled."""
    driver_version: str | None = None
    memory_api: str | None = None
    """`v2` (driver-reserved memory separate) or `v1`."""
    interval_s: float | None = None
    largest_gap_s: float | None = None
    num_samples: int = 0
    devices: list[NvmlDevice] = Field(default_factory=list)
    not_sampled: list[str] = Field(default_factory=list)
    """UUIDs of the node's devices that CUDA_VISIBLE_DEVICES hides from the trial."""
    faults: list[str] = Field(default_factory=list)
    """Lost devices and refused permissions, in order."""


class HostProcess(Record):
    """Host memory of one process of a user's own script."""

    pid: int
    name: str
    rank: int | None
    """RANK in its environment; None for launchers and helpers."""
    peak_rss_bytes: int
    """Kernel's own peak if available (VmHWM), else the largest sample."""
    peak_pss_bytes: int | None
    """Largest sample; pages shared by several processes are divided among them."""


class HostSummary(Record):
    """Host memory of a user's own script on one node: its whole process tree, sampled."""

    hostname: str
    node: int | None = None
    """As in RankRecord."""
    interval_s: float
    num_samples: int
    largest_gap_s: float | None
    peak_rss_bytes: int | None
    """Largest sum over the processes at one time; shared pages count once per process that maps them."""
    peak_pss_bytes: int | None
    """Largest sum with shared pages counted once."""
    group_peak_bytes: int | None
    """Peak of the control group, over all of its processes; None without accounting."""
    group_limit_bytes: int | None
    processes: list[HostProcess] = Field(default_factory=list)
    """Ranks first, then those with most memory."""


class Start(Record):
    """Start of a trial: all that is known if its runner was killed before the trial ended."""

    schema_version: int = SCHEMA_VERSION
    trial_id: str
    started_at_s: float
    """Unix time."""
    runner: str
    """Process and host of the runner."""
    nodes: list[str] = Field(default_factory=list)
    """As in TrialRecord."""
    job: str | None = None
    """As in TrialRecord."""
    job_ends_at_s: float | None = None
    """Unix time of the job's time limit."""


class Recovery(Record):
    """Second launch of a trial with a checkpoint: the load, the further steps, and their times."""

    status: Status
    reason: str | None = None
    world_size: int
    from_step: int
    """Optimizer steps in the checkpoint."""
    killed_at_s: float | None = None
    """When a rank of the first launch was killed on purpose, Unix time; None if it ran to its end."""
    killed_rank: int | None = None
    steps_done: int
    """Optimizer steps completed when the first launch ended."""
    first_ended_at_s: float
    """When the last process of the first launch had ended, Unix time."""
    convert_s: float | None = None
    """Time to create a universal checkpoint; None if none was needed."""
    converted_bytes: int | None = None
    """All files of the universal checkpoint."""
    started_at_s: float | None = None
    """When the second launch began, Unix time; None if it did not."""
    ended_at_s: float | None = None
    loads: list[CheckpointTransfer] = Field(default_factory=list)
    """By rank."""
    losses: list[float] = Field(default_factory=list)
    """Global mean loss of every step: those in the checkpoint, then those of the second launch."""
    steps_ended_at_s: list[float] = Field(default_factory=list)
    """When each step of the second launch ended on the slowest rank, Unix time."""


class TrialRecord(Record):
    """Result of a trial; the ranks' records are separate files."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    trial_id: str
    config_hash: str
    status: Status
    reason: str | None = None
    """For skipped and failed trials: one line."""
    rule: str | None = None
    """For skipped trials: the name of the rule."""
    failure: Failure | None = None
    started_at_s: float | None = None
    """Unix time."""
    ended_at_s: float | None = None
    exit_code: int | None = None
    ranks_expected: int
    ranks_reported: int = 0
    nvml: list[NvmlSummary] = Field(default_factory=list)
    host: list[HostSummary] = Field(default_factory=list)
    """For users' own scripts that were watched: host memory of their process trees, by node."""
    nodes: list[str] = Field(default_factory=list)
    """Names of its nodes, by their index; empty if unknown."""
    job: str | None = None
    """Slurm's id of the job that ran it: `123`, `123_4` in an array, and `123_4.2` after the first requeue."""
    recovery: Recovery | None = None
    """Second launch of a trial with a checkpoint. Everything else here, and the ranks' records, are of the first."""
    notes: list[str] = Field(default_factory=list)
