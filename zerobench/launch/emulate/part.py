"""The part that one process plays on an emulated GPU, and the account that it leaves: how the two sides speak."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field

from zerobench.config.trial.trial import Evidence, PredictionSpec, TrialSpec
from zerobench.launch.emulate.options import Option
from zerobench.records.records import Record, Standing

PART_VARIABLE = "ZEROBENCH_EMULATED_PART"
"""Environment variable of a playing process: the file of its part."""


class Part(Record):
    """Which rank of what one process plays."""

    command: list[str]
    """As the user gave it, launcher and all."""
    rank: int
    world_size: int
    ranks_per_node: int
    gpu: str
    """Catalogue name."""
    host_memory_bytes: int | None
    steps: int
    """Optimizer steps, after which the script is ended."""
    account: Path
    """Where its account goes."""
    snapshot: Path | None = None
    """Where torch's memory snapshot goes; None: nowhere."""
    under_ledger: bool
    """Whether bytes are named, into the run's folder; else they are only counted."""
    speaks: bool
    """Whether this rank writes what the work was."""

    @property
    def local_rank(self) -> int:
        """On its node."""
        return self.rank % self.ranks_per_node

    @property
    def node(self) -> int:
        """Which of the nodes."""
        return self.rank // self.ranks_per_node

    @property
    def num_nodes(self) -> int:
        """Nodes in all."""
        return self.world_size // self.ranks_per_node


class End(StrEnum):
    """How a playing process ended."""

    REFUSED = "refused"
    """The command is not one that can be played; the script was not begun."""
    STOPPED = "stopped"
    """By us, after its steps."""
    FINISHED = "finished"
    """By itself, well."""
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    """By torch's OutOfMemoryError."""
    FAILED = "failed"
    """By an exception of its own, or an exit status."""


class Refusal(Record):
    """A request that the device had no room for, after all that the allocator could give back."""

    bytes_asked: int
    bytes_free: int
    """As the driver says."""
    standing: Standing
    message: str | None = None
    """What torch said of it."""
    during: str
    """Where the training was."""

    @property
    def in_pieces(self) -> bool:
        """Whether there was room for it in all, and not in one piece."""
        return self.standing.is_fragmented(self.bytes_asked, self.bytes_free)


class Account(Record):
    """What one rank's process says of itself when it ends."""

    rank: int
    end: End
    exit_code: int = 0
    message: str | None = None
    """Why it ended, unless well: the last line of its traceback, or why the command cannot be played."""
    num_steps: int = 0
    """Optimizer steps that were taken."""
    tracked: str | None = None
    """What the tracker attached itself to; None: it saw no training."""
    touched_device: bool = False
    compiles: bool = False
    """Whether it had torch.compile compile anything; of which nothing happens under the ledger."""
    deepcompiles: bool = False
    """Whether DeepSpeed's DeepCompile did, whose own C++ is compiled at its first use."""
    total_bytes: int | None = None
    """Of the device."""
    peak_bytes: int | None = None
    """The most that torch's allocator had handed out, from start to end; None where CUDA was never begun."""
    peak_step: int | None = None
    """The optimizer step in which that was first reached, counted from 1; 0 for start-up, None if in no whole step."""
    reserved_bytes: int | None = None
    """The most that it had taken from the driver."""
    occupied_bytes: int | None = None
    """The most that lay in segments with anything in them: of what is reserved, all that it cannot give back before a
    request fails. None where the ledger counts it, phase by phase."""
    start_peak_bytes: int | None = None
    """The most handed out before the first forward pass."""
    outside_bytes: int | None = None
    """What the driver says is used and torch's allocator does not hold: the context and NCCL; no managed memory."""
    managed_bytes: int = 0
    """Managed memory, as of paged optimizers: on the GPU as far as it has room, the rest on the host."""
    alloc_retries: int = 0
    pinned_bytes: int | None = None
    refusal: Refusal | None = None
    """The last one; a script may have gone on after it."""
    options: list[Option] = Field(default_factory=list)
    """Those of the script, and of its launcher, that could be varied; empty where its parser is not argparse's."""
    num_arguments: int | None = None
    """How many of the command's last words are the script's."""
    notes: list[str] = Field(default_factory=list)


def as_emulated(trial: TrialSpec, part: Part) -> TrialSpec:
    """`trial` with how its figures were obtained: the one place that says it of a script."""
    prediction = PredictionSpec(rank=part.rank, gpu=part.gpu, host_memory_bytes=part.host_memory_bytes)
    return trial.model_copy(update={"evidence": Evidence.EMULATED, "prediction": prediction})
