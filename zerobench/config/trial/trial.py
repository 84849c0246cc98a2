"""One point of a sweep: everything that defines the work of one trial, and nothing about how it went."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field

from zerobench.config.trial.adapter import Adapter, base_of, is_wide
from zerobench.config.trial.base import Spec
from zerobench.config.trial.batch_ramp import BatchRamp
from zerobench.config.trial.checkpoint import CheckpointSpec
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer
from zerobench.config.trial.recomputation import Checkpointing

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


class Evidence(StrEnum):
    """How a figure is obtained: the world that the training loop runs in."""

    MEASURED = "measured"
    """Real ranks, real tensors, real collectives."""
    SOLO = "solo"
    """One process that is one rank of N: real tensors, collectives that complete at once."""
    EMULATED = "emulated"
    """One rank of N on a GPU that is not there, under the CUDA build of torch: real tensors whose memory is address
    space, torch's own allocator, kernels that do nothing."""
    SIMULATED = "simulated"
    """One rank of N on a device that is not there: tensors without bytes."""
    FORMULA = "formula"
    """No engine at all: closed forms."""

    @property
    def needs_device(self) -> bool:
        """Whether tensors lie on a device of this machine; else the trial is about a GPU that is only named."""
        return self in {Evidence.MEASURED, Evidence.SOLO}

    @property
    def plays_one_rank(self) -> bool:
        """Whether one process plays a rank of many, so that which one may be chosen."""
        return self in {Evidence.SOLO, Evidence.EMULATED, Evidence.SIMULATED}

    @property
    def is_forked(self) -> bool:
        """Whether trials are forks of one process that has imported everything (zerobench.rank.loop.simulator)."""
        return self in {Evidence.EMULATED, Evidence.SIMULATED}

    @property
    def is_predicted(self) -> bool:
        """Whether nothing is launched: neither rank nor device is at hand."""
        return not self.needs_device


class Offload(StrEnum):
    """Where DeepSpeed keeps a state that it takes off the device."""

    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


OFFLOADS = ("offload_optimizer", "offload_param")
"""What says it of a trial, and the sections that say it of a DeepSpeed configuration."""


class Precision(StrEnum):
    """Data type of the model's parameters and gradients; 16-bit ones keep fp32 master weights."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Compression(StrEnum):
    """What `ddp` makes of a bucket of gradients before it is reduced (torch's communication hooks, and one more)."""

    NONE = "none"
    FP16 = "fp16"
    """Half precision on the way."""
    BF16 = "bf16"
    POWERSGD = "powersgd"
    """Two thin factors of each gradient (Vogels et al., arXiv 1905.13727), with error feedback."""
    ONEBIT = "onebit"
    """Signs and one scale a bucket (Seide et al. 2014; Karimireddy et al., arXiv 1901.09847), with error feedback."""

    @property
    def starts_late(self) -> bool:
        """Whether the first steps are reduced uncompressed, until DDP has found its final buckets."""
        return self in {Compression.POWERSGD, Compression.ONEBIT}


class Consistency(StrEnum):
    """Which weights a worker of a parameter server computes its gradient on, in the terms of Li et al., OSDI 2014
    ("Flexible Consistency"), where `sync` is sequential and `async` eventual; Ho et al. 2013 say BSP and ASP.
    """

    SYNC = "sync"
    """Those that all gradients so far are in: the server waits for all workers and updates once."""
    ASYNC = "async"
    """Those that there are: the server applies each gradient as it comes, so others may have been applied since."""


class TfStrategy(StrEnum):
    """Which of tf.distribute's strategies `tensorflow` trains under."""

    MULTI_WORKER_MIRRORED = "multi-worker-mirrored"
    """A process for each replica, ring all-reduce over gRPC."""
    MIRRORED = "mirrored"
    """One process that holds all replicas, a logical device for each."""
    PARAMETER_SERVER = "parameter-server"
    """Rank 0 holds all variables and coordinates; the others compute gradients, which are summed before each update."""
    TPU = "tpu"
    """One process that holds a replica on each core of a TPU. Written after TensorFlow's source, never run on a TPU."""


class PipelineSchedule(StrEnum):
    """In what order the stages of `pipeline` take the micro-batches of a step, and whose engine runs it."""

    ONE_F_ONE_B = "1f1b"
    """torch's, one backward pass after each forward pass (Narayanan et al., arXiv 2104.04473, section 2.2)."""
    GPIPE = "gpipe"
    """torch's, all forward passes first (Huang et al., arXiv 1811.06965)."""
    DEEPSPEED = "deepspeed"
    """DeepSpeed's PipelineModule and its TrainSchedule, which is 1F1B."""


class Attention(StrEnum):
    """Attention implementation, by transformers' `attn_implementation`."""

    SDPA = "sdpa"
    EAGER = "eager"
    FLASH_ATTENTION_2 = "flash_attention_2"


class CrossEntropy(StrEnum):
    """How the model's output head and its loss are computed (zerobench.rank.training.cross_entropy)."""

    FULL = "full"
    """The model's own: logits of all tokens at once, in the model's type and in fp32."""
    CHUNKED = "chunked"
    """Some tokens at a time, gradients with the loss: logits are never whole."""
    LIGER = "liger"
    """The same by Liger's Triton kernel (Hsu et al., arXiv 2410.10989, section 3.2)."""
    MODEL_DTYPE = "model_dtype"
    """Logits of all tokens at once, in the model's type alone, as many training loops of people's own take the loss."""

    @property
    def is_chunked(self) -> bool:
        """Whether logits are never whole."""
        return self in {CrossEntropy.CHUNKED, CrossEntropy.LIGER}


class Compile(StrEnum):
    """What torch.compile makes one graph of."""

    NONE = "none"
    BLOCKS = "blocks"
    """Each block of the model by itself, all of them by the same compiled code."""
    MODEL = "model"
    """The model as a whole."""


class Weights(StrEnum):
    """How the model's weights come to be before the first step."""

    DRAWN = "drawn"
    """Set where they are to lie, from nothing on disk."""
    LOADED = "loaded"
    """Read from safetensors in the trial's precision by transformers' `from_pretrained`."""
    LOADED_FP32 = "loaded-fp32"
    """The same in fp32, as transformers did before version 5 unless it was told, and then cast."""


class DataKind(StrEnum):
    """Where tokens come from."""

    SYNTHETIC = "synthetic"
    TOKENS = "tokens"
    TEXT = "text"


class DataSpec(Spec):
    """The training tokens."""

    kind: DataKind = DataKind.SYNTHETIC
    """`synthetic`: a seeded, learnable stream; `tokens`: a memory-mapped .bin (uint16/uint32) or .npy file;
    `text`: a UTF-8 text file cut by the tokenizer at `tokenizer`."""
    path: str | None = None
    """The token or text file."""
    tokenizer: str | None = None
    """Path of a tokenizer folder or `tokenizer.json` (for `text`)."""


class HyperparameterSpec(Spec):
    """Optimizer hyperparameters, equal in every strategy."""

    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    """Peak learning rate."""
    warmup_steps: Count = 2
    """Steps of linear warm-up to the peak. Where the batch grows, this and `decay_steps` are counted in the tokens of
    a full batch (rank/training/schedule.py)."""
    decay_steps: Positive = 100
    """Step at which the cosine decay ends."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The learning rate at the end of the decay, as a fraction of the peak."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    gradient_clipping: Annotated[float, Field(ge=0)] = 1.0
    """Largest global norm of the gradients; 0 turns clipping off."""
    seed: int = 1234
    """Seeds the weights, the data and every random generator."""

    def by_torch_names(self, *names: str) -> dict[str, Any]:
        """Those that torch and DeepSpeed call so: lr, betas, eps, weight_decay."""
        betas = [self.adam_beta1, self.adam_beta2]
        values = {"lr": self.learning_rate, "betas": betas, "eps": self.adam_epsilon, "weight_decay": self.weight_decay}
        return {name: values[name] for name in names}


FINE_TUNING = HyperparameterSpec(learning_rate=2e-5, weight_decay=0.0, adam_beta2=0.999)
"""Of full fine-tuning, as Stanford Alpaca and most recipes since have them; the defaults are of pre-training."""


class StepsSpec(Spec):
    """How many steps a trial takes: the first one, which makes the optimizer states and is recorded apart, warm-up,
    memory steps, warm-up again, timed steps, and steps under a profiler where they are asked for.

    Memory comes before speed because malloc is pinned for the one and must not be for the other
    (zerobench/rank/ledger/host.py), and a heap that has once been let loose cannot be made to tell the truth again.
    """

    warmup: Count = 2
    """Steps run and not recorded before the memory steps, and again before the timed ones."""
    memory: Positive = 1
    """Steps run under the memory tracker; the last one is reported as `steady`."""
    timed: Positive = 5
    """Steps timed with no tracker on."""
    communication: Count = 0
    """Steps run under torch's profiler after the timed ones: how long collectives are under way, and how long a rank
    does nothing else. Measured trials of several ranks take them."""

    @property
    def total(self) -> int:
        """All optimizer steps of a trial with a fixed batch (zerobench.config.derived.step_plan has those of a
        ramp).
        """
        return 1 + 2 * self.warmup + self.memory + self.timed + self.communication


class Blocks(StrEnum):
    """Whose blocks the expected time of a step is of."""

    TRANSFORMERS = "transformers"
    """As zerobench runs them: most operations are kernels of their own."""
    FUSED = "fused"
    """Of a program whose norms and activation are one kernel each, as those of the published runs that rates were
    fitted to: LLM Foundry's of 2023."""


class PredictionSpec(Spec):
    """How a trial is predicted; nothing of it defines the work, so a predicted trial joins its measured one."""

    rank: Count = 0
    """Which rank of the world the one process plays (solo, emulated, simulated): padding differs between first and
    last."""
    gpu: str | None = None
    """Catalogue name of the emulated or simulated GPU; None simulates the ranks of a CPU run."""
    all_ranks: bool = False
    """Whether every rank of the world is played, each by a process of its own (emulated); `rank` is then 0."""
    host_memory_bytes: Annotated[int, Field(gt=0)] | None = None
    """Memory of one node that a plan was told of; None: not judged."""
    blocks: Blocks = Blocks.TRANSFORMERS
    micro_batches: Annotated[int, Field(ge=3)] | None = None
    """How many of a step's are played at most (emulated, simulated): the first makes gradients, the second adds to
    them, the last hands them on, and all others are like the second; what grows with them is counted by formula. None:
    all are played."""


class OwnScript(Spec):
    """A user's own script, which zerobench did not plan: of its work only what it showed is known."""

    name: str = Field(min_length=1)
    """The trial's name, also that of its folder: fixed before anything is known of the work."""
    unknown: tuple[str, ...] = ()
    """Fields of the trial that nobody told: their values stand for nothing, and reports leave them empty."""


SCRIPT = "script"
"""The strategy of a script in which no ledger saw the engine; one that was seen has its ZeRO stage's."""


@dataclass(frozen=True)
class Later:
    """Marks a field that came after the first runs were kept: at its default it is not in the hash, so that those keep
    theirs.
    """

    place: int
    """Which of them it is, in the order in which they came: that of their columns, which are only ever added to."""


class NotWork:
    """Marks a field that says nothing of the work: it is not in the hash."""


T = TypeVar("T")
_NotWork = Annotated[T, NotWork()]


class TrialSpec(Spec):
    """One trial. `config_hash` covers all that defines the work and neither evidence, steps, repeat nor `nvme_path`:
    which folder states are swapped to is the machine's affair.
    """

    model: ModelSpec
    strategy: str
    """Name of a strategy (see zerobench.config.derived.strategy)."""
    offload_optimizer: Offload = Offload.NONE
    offload_param: Offload = Offload.NONE
    nvme_path: _NotWork[str | None] = None
    """Folder on the NVMe device that offloaded states are swapped to."""
    num_nodes: Positive = 1
    gpus_per_node: Positive = 1
    """Ranks per node; a rank is a CPU process where there is no GPU."""
    micro_batch_size: Positive = 1
    """Sequences per rank and forward pass."""
    gradient_accumulation_steps: Positive = 1
    batch_ramp: Annotated[BatchRamp | None, Later(5)] = None
    """How the global batch grows to its size, by fewer steps of accumulation at first; None: it does not."""
    sequence_length: Positive = 1024
    """Tokens per sequence."""
    precision: Precision = Precision.BF16
    precision_is_auto: _NotWork[bool] = False
    """Whether `auto` was asked for and came to this precision on the machine that the trial was planned on."""
    optimizer: Optimizer = Optimizer.ADAMW
    activation_checkpointing: Checkpointing = False
    attention: Attention = Attention.SDPA
    ds_config: dict[str, Any] = Field(default_factory=dict)
    """DeepSpeed keys laid over the generated config, as full dotted paths
    (`zero_optimization.reduce_bucket_size`), checked against DeepSpeed's own names."""
    ds_config_file: str | None = None
    """The user's own DeepSpeed JSON, used instead of the generated one."""
    bucket_bytes: Annotated[Positive | None, Later(1)] = None
    """Largest bucket of gradients that `ddp` reduces at once, in bytes; None leaves it to torch (1 MiB for the first
    bucket, 25 MiB for the others). torch calls it bucket_cap_mb and means MiB, DeepSpeed's reduce_bucket_size counts
    elements: here the unit is in the name."""
    compression: Annotated[Compression, Later(2)] = Compression.NONE
    """How `ddp` compresses gradients on their way."""
    reshard_after_forward: Annotated[bool, Later(3)] = True
    """Whether `fsdp` frees a block's gathered parameters after its forward pass and gathers them again in backward."""
    consistency: Annotated[Consistency, Later(4)] = Consistency.SYNC
    """Whether the server of `parameter-server` waits for all workers before it updates."""
    hpz_partition_size: Annotated[Positive | None, Later(6)] = None
    """ZeRO++'s hpZ (Wang et al., arXiv 2306.10209, section 3.2): neighbouring ranks that keep a second copy of the
    parameters among them, in their own type, from which backward gathers; None keeps none. DeepSpeed's
    zero_hpz_partition_size."""
    quantized_weights: Annotated[bool, Later(7)] = False
    """ZeRO++'s qwZ: parameters are gathered in blocks of 8 bits. DeepSpeed's zero_quantized_weights."""
    quantized_gradients: Annotated[bool, Later(8)] = False
    """ZeRO++'s qgZ: gradients are reduced in blocks of 4 bits, within nodes and then between them. DeepSpeed's
    zero_quantized_gradients."""
    mics_shard_size: Annotated[Positive | None, Later(9)] = None
    """MiCS (Zhang et al., arXiv 2205.00119): neighbouring ranks that divide all model states among them, so that each
    such group holds a whole copy; None divides them among all ranks. `fsdp` does it (torch calls it HSDP)."""
    checkpoint: Annotated[CheckpointSpec | None, Later(10)] = None
    """When it saves and how it is resumed; None: it does neither. Nor does a prediction, which has it all the same, to
    be joined with the measured trial."""
    tf_strategy: Annotated[TfStrategy, Later(11)] = TfStrategy.MULTI_WORKER_MIRRORED
    """Which of tf.distribute's strategies `tensorflow` trains under."""
    pipeline_schedule: Annotated[PipelineSchedule, Later(12)] = PipelineSchedule.ONE_F_ONE_B
    """In what order the stages of `pipeline` take the micro-batches of a step."""
    threads_per_rank: Annotated[Positive | None, Later(13)] = None
    """Threads that each rank computes with on the host (OMP_NUM_THREADS); None divides the node's cores among its
    ranks. Equal numbers make ranks equal workers, whatever their number: what a speed-up over one process needs."""
    cross_entropy: Annotated[CrossEntropy, Later(14)] = CrossEntropy.FULL
    """How output head and loss are computed; the loss is the same, in `model_dtype` but for the rounding of 16 bits."""
    compile: Annotated[Compile, Later(15)] = Compile.NONE
    """What torch.compile makes one graph of, with inductor."""
    zero_init: Annotated[bool, Later(16)] = True
    """Whether the model of stage 3 is partitioned as it is built, under deepspeed.zero.Init, as transformers' Trainer
    does. Else every rank builds it whole on its device and deepspeed.initialize partitions it."""
    adapter: Annotated[Adapter | None, Later(18)] = None
    """Low-rank adapters that are trained beside a frozen model (LoRA); None: the model's own weights are trained."""
    frozen: Annotated[str | None, Later(19)] = None
    """A regular expression; weights in whose names it is found are not trained. None: all are."""
    weights: Annotated[Weights, Later(20)] = Weights.DRAWN
    """How the weights come to be: start-up differs, and not one step of training."""
    data: DataSpec = DataSpec()
    hyperparameters: HyperparameterSpec = HyperparameterSpec()
    steps: _NotWork[StepsSpec] = StepsSpec()
    timeout_s: _NotWork[Annotated[float, Field(gt=0)]] = 900.0
    """Seconds without progress of any rank (an import, a phase, a step) after which the trial is taken for hung and
    ended. As long as one rank goes on, so does the trial, on a busy machine slowly."""
    trust_remote_code: bool = False
    """Let transformers run code that ships with a model's config."""
    evidence: _NotWork[Evidence] = Evidence.MEASURED
    prediction: _NotWork[PredictionSpec] = PredictionSpec()
    repeat: _NotWork[Count] = 0
    """Which repetition of the same trial this is."""
    own: _NotWork[OwnScript | None] = None
    """Set where the trial is a user's own script and not one that zerobench planned."""

    def knows(self, field: str) -> bool:
        """Whether the value of `field` is the work's; always so but for users' own scripts."""
        return self.own is None or field not in self.own.unknown

    @property
    def trains_all(self) -> bool:
        """Whether every weight is trained."""
        return self.adapter is None and self.frozen is None

    @property
    def trains_in_16_bits(self) -> bool:
        """Whether what is trained is in 16 bits, and has its gradients in them: not so adapters in fp32."""
        return self.precision is not Precision.FP32 and not self.widens_adapters

    @property
    def widens_adapters(self) -> bool:
        """Whether adapters are in fp32 beside a 16-bit model."""
        return self.precision is not Precision.FP32 and is_wide(self.adapter)

    @property
    def passes_all(self) -> bool:
        """Whether backward comes to the first block whatever is trained: where transformers 5 checkpoints, it asks for
        the gradient of the embedding's output (modeling_utils.py, gradient_checkpointing_enable).
        """
        return bool(self.activation_checkpointing)

    @property
    def is_loaded(self) -> bool:
        """Whether the weights are read from files."""
        return self.weights is not Weights.DRAWN

    @property
    def partitions_as_built(self) -> bool:
        """Whether stage 3 runs zero.Init. transformers does without for what is quantised (modeling_utils.py, `if
        is_deepspeed_zero3_enabled() and not is_quantized`): every rank has the quantised model whole at first.
        """
        return self.zero_init and base_of(self.adapter) is None

    @property
    def world_size(self) -> int:
        """Ranks in total."""
        return self.num_nodes * self.gpus_per_node

    @property
    def peers_limit_s(self) -> float:
        """How long a rank waits for the others in one operation.

        Well above `timeout_s`: a rank may wait for one that goes on, and it is the runner who is to find a hang, since
        it has every rank's stack.
        """
        return 4 * self.timeout_s

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step, over all ranks; with a ramp, at its end."""
        return self.world_size * self.micro_batch_size * self.gradient_accumulation_steps

    @property
    def global_batch_tokens(self) -> int:
        """Tokens per optimizer step, over all ranks; with a ramp, at its end."""
        return self.global_batch_size * self.sequence_length

    @property
    def tokens_per_gpu(self) -> float:
        """Of an optimizer step's tokens, the share of one GPU."""
        return self.global_batch_tokens / self.world_size

    @property
    def played_ranks(self) -> range:
        """The ranks that a prediction plays."""
        first = self.prediction.rank
        return range(self.world_size) if self.prediction.all_ranks else range(first, first + 1)

    @property
    def zero_stage(self) -> int | None:
        """ZeRO stage, or None for a strategy without DeepSpeed."""
        return int(self.strategy.removeprefix("zero")) if self.strategy.startswith("zero") else None

    @property
    def offloaded_to(self) -> set[Offload]:
        """Where optimizer states or parameters are but on the device; empty without offload."""
        return {self.offload_optimizer, self.offload_param} - {Offload.NONE}

    @cached_property
    def config_hash(self) -> str:
        """Twelve hex digits over all that defines the work, so that predicted joins measured."""
        fields = type(self).model_fields
        unsaid = [name for name in _marked(Later) if getattr(self, name) == fields[name].default]
        work = self.model_dump(mode="json", exclude={*_marked(NotWork), *unsaid})
        if self.checkpoint is not None:  # where files lie, and whether they stay, is no work
            work["checkpoint"] = self.checkpoint.model_dump(mode="json", exclude={"folder", "keep"})
        text = json.dumps(work, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def parity_hash(self) -> str:
        """Equal for trials whose losses must agree: same model, global batch and hyperparameters."""
        same = self.model_dump(
            mode="json", include={"model", "sequence_length", "precision", "data", "hyperparameters"}
        )
        same["optimizer"] = OPTIMIZERS[self.optimizer].family
        same["global_batch_size"] = self.global_batch_size
        if self.batch_ramp is not None:  # older runs have none: theirs stays as it was
            same["batch_ramp"] = self.batch_ramp.model_dump(mode="json")
        same |= {name: value for name in ("adapter", "frozen") if (value := getattr(self, name)) is not None}
        text = json.dumps(same, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def trial_id(self) -> str:
        """Stable name of the trial: readable first, unique by its hash; also the name of its folder."""
        if self.own is not None:
            return slug(self.own.name)
        offload = ""
        if self.offloaded_to:
            offload = f"-{self.offload_optimizer}-{self.offload_param}"
        how = "" if self.evidence is Evidence.MEASURED else f"-{self.evidence}"
        if self.prediction.rank:
            how += f"-rank{self.prediction.rank}"
        if self.prediction.all_ranks:
            how += "-all-ranks"
        if self.prediction.gpu is not None:
            how += f"-{self.prediction.gpu}"
        if self.nvme_path is not None and self.evidence.needs_device:  # two devices are two trials of one config_hash
            how += f"-path{hashlib.sha256(os.fsencode(self.nvme_path)).hexdigest()[:4]}"
        # A long name of a model must not push off the end what the hash does not cover.
        name = slug(f"{self.model.name}-{self.strategy}{offload}-n{self.world_size}")
        return f"{name}{slug(how) if how else ''}-{self.config_hash[:8]}-r{self.repeat}"

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with the fields of `update`; pydantic would take over what was computed of the old ones."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("config_hash", "parity_hash", "trial_id"):
            copied.__dict__.pop(name, None)
        return copied


@cache
def _marked(mark: type) -> tuple[str, ...]:
    """The fields of a trial that bear the mark."""
    fields = TrialSpec.model_fields.items()
    return tuple(name for name, field in fields if any(isinstance(entry, mark) for entry in field.metadata))


def slug(text: str) -> str:
    """`text` with all but letters, digits, dot, dash and underscore replaced, safe as a file name."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text)
    return kept.strip(".")[:80] or "trial"
