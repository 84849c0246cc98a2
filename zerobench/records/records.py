"""What a trial leaves on disk: raw measurements with units in their names, and a schema version.

A rank writes `rank_<r>.json` (RankRecord); the runner writes `record.json` (TrialRecord). Means, GiB, MFU and
errors are derived when reporting. Not available is None, never 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind, _Named

SCHEMA_VERSION = 1

Document = TypeVar("Document", bound=BaseModel)


def read_or_none(path: Path, model: type[Document]) -> Document | None:
    """The document at `path`; None where it is not there, or torn: its writer is at it, or was killed."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


class Record(BaseModel):
    """Strict base of everything read back from disk."""

    # A loss may diverge to NaN: it is kept as "NaN", which reads back as a float, where null would not.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Holder(_Named):
    """What keeps a byte alive: it is freed when its last holder lets go."""

    AUTOGRAD = "autograd"
    """The autograd graph: a module's forward pass saved it for backward."""
    ENGINE = "engine"
    """DeepSpeed, FSDP, DDP or Horovod: partitions, buckets, gathered parameters."""
    OPTIMIZER = "optimizer"
    """The optimizer's states."""
    MODEL = "model"
    """A module's parameter, its gradient, or a buffer."""
    LOOP = "loop"
    """The training loop: the batch, and the model's output while a variable refers to it."""
    OPERATION = "operation"
    """The running pass, which hands it from one operation to the next."""
    LIBRARY = "library"
    """A library of torch's: workspaces of matrix products."""


class PeakPart(Record):
    """Tensors of one category at a peak with the same module and the same holders."""

    total_bytes: int
    count: int
    """Number of storages."""
    site: str | None = None
    """The function that allocated most of them, or the node of the backward pass; None where it was not observed."""
    module: str | None = None
    """The class of the module that saved them for backward, else of the one that allocated them."""
    path: str | None = None
    """That module's name within the model, `*` for the numbers of layers; None where only the class is known."""
    holders: list[Holder] = Field(default_factory=list)
    """Empty where there is no evidence; several where each of them has to let go."""


class MemoryRow(Record):
    """Bytes of one category in one place over one phase, on one rank."""

    step: StepKind
    phase: Phase
    place: Place
    category: Category
    live_bytes: int
    """At the end of the phase."""
    at_peak_bytes: int | None
    """At the instant of the phase's peak of this place; over the categories these sum to the total's."""
    own_peak_bytes: int | None
    """The category's own largest value within the phase."""
    at_tensor_peak_bytes: int | None = None
    """At the instant when the place held most but for `kernel_workspace`, which is left out: what a prediction, which
    cannot look into kernels, is held against. None where the two are not known apart."""
    largest: list[PeakPart] | None = None
    """The largest parts of `at_peak_bytes`, in order of size, without the smaller ones. None in older records and where
    nothing but the total was observed."""

    @property
    def foreseeable_peak_bytes(self) -> int | None:
        """At the peak, as far as a prediction can know it."""
        return self.at_peak_bytes if self.at_tensor_peak_bytes is None else self.at_tensor_peak_bytes


class MemoryCourse(Record):
    """Device memory of one rank over one phase as it ran, at a few instants, that of the largest total among them."""

    step: StepKind
    phase: Phase
    num_events: int
    """Allocations and frees within the phase."""
    events: list[int]
    """For each instant the number of events before it, in order."""
    sizes_bytes: dict[Category, list[int]]
    """Bytes at each instant, as tensors asked for them; only the emulator's and the simulator's blocks are rounded."""
    sites: dict[Category, str]
    """Where most bytes of the category were allocated: file and function, or the autograd node."""


class MemoryCourses(Record):
    """A rank's memory over start-up and a steady step."""

    schema_version: int = SCHEMA_VERSION
    trial_id: str
    rank: int
    phases: list[MemoryCourse]


class ProcessMemory(Record):
    """What the kernel says of the rank's process at the end of a phase."""

    step: StepKind
    phase: Phase
    rss_bytes: int
    pss_bytes: int | None
    peak_rss_bytes: int | None
    """Largest resident size within the phase (VmHWM, reset at its start)."""
    malloc_bytes: int | None
    """Bytes that glibc's malloc has handed out (mallinfo2), a count that knows nothing of tensors."""
    pinned_bytes: int | None
    """Page-locked host memory held by torch."""


class DeviceMemory(Record):
    """What the device's allocator and driver say at the end of a phase (CUDA only)."""

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
    """The most that segments held in which anything lay: of what is reserved, all that the allocator cannot give back
    before an allocation fails; by its history, at most so much where its segments are expandable or the history is not
    whole. None in older records."""

    @property
    def held_bytes(self) -> int:
        """The most that the allocator could not do without in the phase."""
        if self.peak_occupied_bytes is not None:
            return self.peak_occupied_bytes
        return max(self.peak_reserved_bytes, self.reserved_bytes)


class NvmeTraffic(Record):
    """Bytes that the rank moved to and from block devices in a phase (the kernel's /proc/self/io)."""

    step: StepKind
    phase: Phase
    read_bytes: int
    written_bytes: int
    seconds: float


class PhaseMark(Record):
    """When a phase began and ended, to lay sampled curves over it."""

    step_index: int
    """0 is the first step; init has -1."""
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
    """None, like the next two, where the phases of a step cannot be told apart: TensorFlow's is one graph."""
    backward_s: float | None
    optimizer_s: float | None
    wait_s: float | None = None
    """Within the step, waiting for other ranks and not for what they send; of a pipeline's stage all that is neither
    forward, backward nor update, receiving included. None where the strategy does not know it."""


class StepBatch(Record):
    """What one optimizer step was for and how much it trained on."""

    kind: str
    """`first`, `warmup`, `memory`, `timed` or `communication`."""
    tokens: int
    """Tokens of the step over all ranks: its global batch."""
    device_peak_bytes: int | None = None
    """The most that tensors held on this rank's device within the step; None where no ledger watched."""


class CommunicationTime(Record):
    """What the profiler saw of one step's collectives, sends and receives on this rank
    (rank/training/communication.py).
    """

    step_s: float
    """The whole step under the profiler, which slows it: shares are of this."""
    calls: int
    """Collectives, sends and receives; 0 where none passed a library that tells."""
    in_flight_s: float
    """In which at least one was under way, from its call to its end, waiting for the other ranks included."""
    exposed_s: float
    """Of these, those in which the rank computed nothing."""


class CollectiveTraffic(Record):
    """What this rank handed to one kind of collective in a phase, all of its calls together."""

    step: StepKind
    phase: Phase
    kind: str
    """`all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`, `all_to_all`, `send`, `recv`, `barrier`."""
    group_size: int
    """Ranks of the process group."""
    num_nodes: int | None = None
    """Nodes that the group's ranks lie on; None where that was not told, as in older records."""
    calls: int
    message_bytes: int
    """Bytes of the whole message: what is reduced, or what is gathered from all ranks together. What crosses a rank's
    link depends on the algorithm (a ring moves 2 (N-1)/N of it in an all-reduce, (N-1)/N in the others)."""


class CountedFlops(Record):
    """Floating-point operations of the matrix products and attention kernels that ran in a phase, recomputed ones
    included (torch.utils.flop_counter's formulas).
    """

    step: StepKind
    phase: Phase
    flops: int


class ContextMemory(Record):
    """Device memory outside torch, from the driver's readings around the events that make it."""

    before_bytes: int | None
    """Used on the device before this trial touched it: other processes."""
    context_bytes: int | None
    """What the CUDA context and the loaded kernels took."""
    collectives_bytes: int | None
    """What NCCL took at its first collectives."""


class Standing(Record):
    """What stood on a device when its allocator refused a request, asked at that instant."""

    allocated_bytes: int
    """Given out by torch's allocator."""
    reserved_bytes: int
    """Taken by it from the driver; what is not given out of it is free in pieces."""
    largest_free_bytes: int
    """The largest of those pieces."""
    by_category: dict[Category, int] = Field(default_factory=dict)
    """Empty, like the next two, where no ledger watched; what the names do not cover is unattributed."""
    by_module: dict[str, int] = Field(default_factory=dict)
    """By the class of the model's module: its parameters and gradients, and what its code allocated."""
    by_site: dict[str, int] = Field(default_factory=dict)
    """By the function that allocated it."""
    by_holder: dict[str, int] = Field(default_factory=dict)
    """By what keeps it alive, with the module that saved it where that is autograd; empty in older records."""

    def in_pieces(self, bytes_asked: int, bytes_free: int) -> bool:
        """Whether there was room for what was asked in all, and not in one piece."""
        return self.reserved_bytes - self.allocated_bytes + bytes_free >= bytes_asked


class HostStanding(Record):
    """What one rank held of its node's memory at one instant."""

    at: str
    """Which instant, in words."""
    is_last_account: bool = False
    """Whether it was written down some time before the end, which came without a word: the kernel kills at once."""
    by_category: dict[Category, int]
    """The rest of the process among them, where it was asked of the kernel."""
    by_module: dict[str, int] = Field(default_factory=dict)
    """As those of `Standing`, of the tensors alone."""
    by_site: dict[str, int] = Field(default_factory=dict)
    by_holder: dict[str, int] = Field(default_factory=dict)
    address_space_bytes: int | None = None
    """Addresses that the process had taken; None where nothing but memory limits them."""
    address_limit_bytes: int | None = None
    """How many it could (`ulimit -v`)."""

    @property
    def total_bytes(self) -> int:
        return sum(self.by_category.values())

    @property
    def tensor_bytes(self) -> int:
        """Of it what tensors held."""
        return self.total_bytes - self.by_category.get(Category.REST_OF_PROCESS, 0)


class Failure(Record):
    """Why a rank, or a trial, did not complete."""

    phase: Phase | None = None
    step_index: int | None = None
    rank: int | None = None
    message: str
    """One line for a person."""
    exception: str | None = None
    traceback: str | None = None
    bytes_asked: int | None = None
    bytes_free: int | None = None
    bytes_needed: int | None = None
    """What the rank needs of its device in all: its emulated GPU had less, and it was played once more on one that has
    room for everything. The record's memory is then of that play."""
    standing: Standing | None = None
    """What stood on the device when it refused. None in older records."""
    host_standing: HostStanding | None = None
    """What was held of the host where its memory was refused, or by the last account before the kernel's kill."""
    evidence: str | None = None
    """What shows it, for example the kernel's oom_kill counter or the exit signal."""
    stacks: dict[str, str] = Field(default_factory=dict)
    """On timeout: each rank's Python stacks."""


class ParameterTensor(Record):
    """Exact parameter counts of the model as built."""

    total: int
    trainable: int
    by_component: dict[str, int]
    """token_embeddings, positional_embeddings, attention, mlp, norms, head."""


class Compilation(Record):
    """What torch.compile did in one rank's process."""

    backend: str
    seconds: float
    """Time that dynamo and its backend took, in which the rank did nothing else; before any timed step, but for what
    is compiled within those."""
    num_graphs: int
    """Graphs that were made. Blocks alike share one."""
    num_graph_breaks: int
    """Places where tracing had to stop and begin again."""
    num_graphs_in_timed_steps: int
    timed_peak_allocated_bytes: int | None
    """The allocator's peak over the timed steps, which run compiled code; None on a CPU."""


class CheckpointTransfer(Record):
    """One save or one load of a checkpoint, as one rank took part in it."""

    kind: str
    """`save` or `load`."""
    step: int
    """Optimizer steps that the checkpoint holds."""
    start_s: float
    """Unix time, when all ranks were ready."""
    seconds: float
    """Until the last rank was done and, of a save, every file was on the disk (fsync)."""
    own_s: float
    """Until this rank was done with its part, which a save had then handed to the kernel."""
    size_bytes: int
    """Of all files of the checkpoint, of all ranks together."""
    rss_before_bytes: int | None
    """Resident memory of the process before; None where malloc keeps what is freed, so that a peak says nothing."""
    rss_peak_bytes: int | None
    """The largest within it (VmHWM)."""
    device_before_bytes: int | None
    """What torch's allocator had handed out on the GPU before; None on a CPU."""
    device_peak_bytes: int | None
    """The most within it."""
    page_cache_dropped: bool | None = None
    """Of a load: whether the kernel was asked to forget the files first, so that they come from the disk
    (posix_fadvise(2), POSIX_FADV_DONTNEED)."""


class RankRecord(Record):
    """All that one rank measured."""

    schema_version: int = SCHEMA_VERSION
    trial_id: str
    rank: int
    local_rank: int
    world_size: int
    role: str = "worker"
    """`worker`, or `server`: one that holds weights and optimizer states for the workers. Of a server, the phase
    `backward` is when gradients come in, `step` when it updates and sends weights; it has no `forward`."""
    hostname: str
    node: int | None = None
    """Index of its node within the trial: what joins it to the node's samples, whatever the node calls itself. None in
    older records, which are joined by hostname."""
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
    """Releases that acted in its process, by package: torch, deepspeed, transformers, peft, accelerate. Empty in older
    records, by formula, and of ranks without torch."""
    micro_batch_size: int
    flops_per_step: float | None = None
    """Model FLOPs of this rank for one optimizer step, by the formula named in `flops_formula`."""
    flops_formula: str | None = None
    losses: list[float] = Field(default_factory=list)
    """Global mean loss of every step, the first one included, in order."""
    grad_norms: list[float | None] = Field(default_factory=list)
    """Global norm of the gradients of every step, unscaled and before clipping, in order; None for a step in which
    nobody computed it, infinite for one that a loss scale left out. Empty on a rank that does not know it (a server's
    workers, the stages that a driver tells what to do) and in older records."""
    staleness_steps: list[int] | None = None
    """On a server: for each gradient in the order in which it was applied, how many updates lie between the weights
    that it was computed on and those that it was applied to; None where no worker was there."""
    compilation: Compilation | None = None
    """None where nothing was to be compiled."""
    checkpoints: list[CheckpointTransfer] = Field(default_factory=list)
    """Its saves, or its load, in order."""
    killed_at_s: float | None = None
    """When it was killed because the trial asked for that (`checkpoint.fault`), Unix time; its record is of the moment
    before."""
    learning_rates: list[float] = Field(default_factory=list)
    """What the optimizer of this rank used in every step, read back from it; empty where the rank has none."""
    batches: list[StepBatch] = Field(default_factory=list)
    """Every step, the first one included, in order. Empty in records of before batches could grow, and of users' own
    scripts."""
    step_times: list[StepTime] = Field(default_factory=list)
    marks: list[PhaseMark] = Field(default_factory=list)
    memory: list[MemoryRow] = Field(default_factory=list)
    process_memory: list[ProcessMemory] = Field(default_factory=list)
    host_peak: HostStanding | None = None
    """What its tensors held of the host when they held most: of tracked training, and where a node's memory was
    given to predict for."""
    device_memory: list[DeviceMemory] = Field(default_factory=list)
    nvme: list[NvmeTraffic] = Field(default_factory=list)
    collectives: list[CollectiveTraffic] = Field(default_factory=list)
    communication: list[CommunicationTime] = Field(default_factory=list)
    """One for each step that was run under the profiler."""
    flops: list[CountedFlops] = Field(default_factory=list)
    step_trace: str | None = None
    """Of a rank whose GPU is not there: what its steady step issued, in order, packed
    (zerobench.estimate.time.trace)."""
    context: ContextMemory | None = None
    mapped_peak_bytes: int | None = None
    """Of a rank that loaded its weights: the most that it had of files in memory meanwhile, beyond what it had before.
    Page cache, which ranks of a node share and the kernel takes back."""
    effective_config: dict[str, Any] = Field(default_factory=dict)
    """What the engine says it runs with, read back from it after it was built."""
    departures: list[str] = Field(default_factory=list)
    """Where the engine's memory departs from the ZeRO paper for this configuration, in sentences."""
    notes: list[str] = Field(default_factory=list)
    """What was not available and why, and warnings that a reader of the figures must know."""


class NvmlDevice(Record):
    """What the sampler saw of one device during the trial."""

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
    """The NVML sampler of one node."""

    hostname: str
    node: int | None = None
    """As in RankRecord."""
    available: bool
    reason: str | None = None
    """Why nothing, or not everything, was sampled."""
    driver_version: str | None = None
    memory_api: str | None = None
    """`v2` (driver-reserved memory apart) or `v1`."""
    interval_s: float | None = None
    largest_gap_s: float | None = None
    num_samples: int = 0
    devices: list[NvmlDevice] = Field(default_factory=list)
    not_sampled: list[str] = Field(default_factory=list)
    """UUIDs of the node's devices that CUDA_VISIBLE_DEVICES kept from the trial."""
    faults: list[str] = Field(default_factory=list)
    """Devices lost, permissions refused, in the order they came."""


class HostProcess(Record):
    """The host memory of one process of a user's own script."""

    pid: int
    name: str
    rank: int | None
    """RANK in its environment; None for launchers and helpers."""
    peak_rss_bytes: int
    """The kernel's own peak where it tells (VmHWM), else the largest of the samples."""
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
    """Largest sum over the processes at one time; shared pages count for each that maps them."""
    peak_pss_bytes: int | None
    """The same with shared pages counted once."""
    group_peak_bytes: int | None
    """The most that the control group held, whoever was in it; None where it keeps no account."""
    group_limit_bytes: int | None
    processes: list[HostProcess] = Field(default_factory=list)
    """Ranks first, then those that held most."""


class Start(Record):
    """How a trial was begun: what is known of one whose runner was killed before it could say how it ended."""

    schema_version: int = SCHEMA_VERSION
    trial_id: str
    started_at_s: float
    """Unix time."""
    runner: str
    """Process and host of whoever watched it."""
    nodes: list[str] = Field(default_factory=list)
    """As in TrialRecord."""
    job: str | None = None
    """As in TrialRecord."""
    job_ends_at_s: float | None = None
    """When the job's time limit comes, Unix time."""


class Recovery(Record):
    """The second launch of a trial with a checkpoint: what it loaded, how it went on, and when."""

    status: Status
    reason: str | None = None
    world_size: int
    from_step: int
    """Optimizer steps that the checkpoint held."""
    killed_at_s: float | None = None
    """When a rank of the first launch was killed on purpose, Unix time; None where it went on to its end."""
    killed_rank: int | None = None
    steps_done: int
    """Optimizer steps that were done when the first launch ended."""
    first_ended_at_s: float
    """When the last process of the first launch was gone, Unix time."""
    convert_s: float | None = None
    """What making a universal checkpoint took; None where none was needed."""
    converted_bytes: int | None = None
    """Of all files of the universal checkpoint."""
    started_at_s: float | None = None
    """When the second launch began, Unix time; None where it did not come to it."""
    ended_at_s: float | None = None
    loads: list[CheckpointTransfer] = Field(default_factory=list)
    """By rank."""
    losses: list[float] = Field(default_factory=list)
    """Global mean loss of every step: those that the checkpoint knew, then those of the second launch."""
    steps_ended_at_s: list[float] = Field(default_factory=list)
    """When each step of the second launch ended on the slowest rank, Unix time."""


class TrialRecord(Record):
    """A trial as it ended; the ranks' records lie beside it."""

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
    """Names of the nodes that it ran on, by their index; empty where nobody named them."""
    job: str | None = None
    """Slurm's id of the job that ran it: `123`, of an array `123_4`, and `123_4.2` at the second start of a requeued
    one."""
    recovery: Recovery | None = None
    """Of a trial with a checkpoint: its second launch. All else here, and the ranks' records, are of the first."""
    notes: list[str] = Field(default_factory=list)
