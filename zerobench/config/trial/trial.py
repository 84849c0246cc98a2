"""One point of a sweep: everything that defines a trial's work, and none of its results."""

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
    """Source of a figure: the environment of the training loop."""

    MEASURED = "measured"
    """Real ranks, real tensors, real collectives."""
    SOLO = "solo"
    """One process as one of N ranks: real tensors, collectives that complete at once."""
    EMULATED = "emulated"
    """One of N ranks on a GPU that is not present, under the CUDA build of torch: real tensors in reserved address
    space, torch's own allocator, kernels that do nothing."""
    SIMULATED = "simulated"
    """One of N ranks on a device that is not present: tensors without memory."""
    FORMULA = "formula"
    """Closed forms, without an engine."""

    @property
    def needs_device(self) -> bool:
        """Return whether tensors are on a device of this machine; else the trial is for a GPU that is only named."""
        return self in {Evidence.MEASURED, Evidence.SOLO}

    @property
    def plays_one_rank(self) -> bool:
        """Return whether one process runs one of many ranks, which can be chosen."""
        return self in {Evidence.SOLO, Evidence.EMULATED, Evidence.SIMULATED}

    @property
    def is_forked(self) -> bool:
        """Return whether trials are forks of a process that has imported everything (zerobench.rank.loop.simulator)."""
        return self in {Evidence.EMULATED, Evidence.SIMULATED}

    @property
    def is_predicted(self) -> bool:
        """Return whether nothing is launched on real ranks or devices."""
        return not self.needs_device


class Offload(StrEnum):
    """Place of a state that DeepSpeed moves off the device."""

    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


OFFLOADS = ("offload_optimizer", "offload_param")
"""Fields of a trial, and sections of a DeepSpeed configuration, with offload."""


class Precision(StrEnum):
    """Data type of parameters and gradients; 16-bit ones have fp32 master weights."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Compression(StrEnum):
    """Compression of `ddp`'s gradient buckets before reduction (torch's communication hooks, and one more)."""

    NONE = "none"
    FP16 = "fp16"
    """Half precision in communication."""
    BF16 = "bf16"
    POWERSGD = "powersgd"
    """Two thin factors of each gradient (Vogels et al., arXiv 1905.13727), with error feedback."""
    ONEBIT = "onebit"
    """Signs and one scale per bucket (Seide et al. 2014; Karimireddy et al., arXiv 1901.09847), with error feedback."""

    @property
    def starts_late(self) -> bool:
        """Return whether the first steps are reduced uncompressed, until DDP has built its final buckets."""
        return self in {Compression.POWERSGD, Compression.ONEBIT}


class Consistency(StrEnum):
    """Weights on which a worker of a parameter server computes its gradient, in the terms of Li et al., OSDI 2014
    ("Flexible Consistency"), where `sync` is sequential and `async` eventual; Ho et al. 2013 call them BSP and ASP.
    """

    SYNC = "sync"
    """With all gradients so far: the server waits for all workers and updates once."""
    ASYNC = "async"
    """The present ones: the server applies each gradient on arrival, so others may have been applied since."""


class TfStrategy(StrEnum):
    """Strategy of tf.distribute for `tensorflow`."""

    MULTI_WORKER_MIRRORED = "multi-worker-mirrored"
    """One process per replica, ring all-reduce over gRPC."""
    MIRRORED = "mirrored"
    """One process with all replicas, one logical device each."""
    PARAMETER_SERVER = "parameter-server"
    """Rank 0 has all variables and coordinates; the others compute gradients, which are summed before each update."""
    TPU = "tpu"
    """One process with a replica per TPU core. Written after TensorFlow's source, never run on a TPU."""


class PipelineSchedule(StrEnum):
    """Order in which the stages of `pipeline` process the micro-batches of a step, and its engine."""

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
    """Computation of the model's output head and loss (zerobench.rank.training.cross_entropy)."""

    FULL = "full"
    """The model's own: logits of all tokens at once, in the model's type and in fp32."""
    CHUNKED = "chunked"
    """Some tokens at a time, gradients with the loss: logits are never complete."""
    LIGER = "liger"
    """The same by Liger's Triton kernel (Hsu et al., arXiv 2410.10989, section 3.2)."""
    MODEL_DTYPE = "model_dtype"
    """Logits of all tokens at once, only in the model's type, as in many custom training loops."""

    @property
    def is_chunked(self) -> bool:
        """Return whether logits are never complete."""
        return self in {CrossEntropy.CHUNKED, CrossEntropy.LIGER}


class Compile(StrEnum):
    """Scope of one torch.compile graph."""

    NONE = "none"
    BLOCKS = "blocks"
    """Each block of the model by itself, all with the same compiled code."""
    MODEL = "model"
    """The model as a whole."""


class Weights(StrEnum):
    """Initialization of the model's weights."""

    DRAWN = "drawn"
    """Drawn in place, without files."""
    LOADED = "loaded"
    """Read from safetensors in the trial's precision by transformers' `from_pretrained`."""
    LOADED_FP32 = "loaded-fp32"
    """The same in fp32, the default of transformers before version 5, and then cast."""


class DataKind(StrEnum):
    """Source of tokens."""

    SYNTHETIC = "synthetic"
    TOKENS = "tokens"
    TEXT = "text"


class DataSpec(Spec):
    """Training tokens."""

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
    """Steps of linear warm-up to the peak. If the batch grows, this and `decay_steps` are counted in the tokens of a
    full batch (rank/training/schedule.py)."""
    decay_steps: Positive = 100
    """Step at which the cosine decay ends."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end of the decay, as a fraction of the peak."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    gradient_clipping: Annotated[float, Field(ge=0)] = 1.0
    """Largest global norm of the gradients; 0 turns clipping off."""
    seed: int = 1234
    """Seed of the weights, the data and every random generator."""

    def torch_values(self, *names: str) -> dict[str, Any]:
        """Values by their names in torch and DeepSpeed: lr, betas, eps, weight_decay."""
        betas = [self.adam_beta1, self.adam_beta2]
        values = {"lr": self.learning_rate, "betas": betas, "eps": self.adam_epsilon, "weight_decay": self.weight_decay}
        return {name: values[name] for name in names}


FINE_TUNING = HyperparameterSpec(learning_rate=2e-5, weight_decay=0.0, adam_beta2=0.999)
"""For full fine-tuning, as in Stanford Alpaca and most recipes since; the defaults are for pre-training."""


class StepsSpec(Spec):
    """Steps of a trial: the first one, which creates the optimizer states and is recorded separately, warm-up, memory
    steps, warm-up again, timed steps, and optional steps under a profiler.

    Memory comes before speed because malloc is pinned for the one and must not be for the other
    (zerobench/rank/ledger/host.py), and once unpinned a heap can no longer be measured exactly.
    """

    warmup: Count = 2
    """Unrecorded steps before the memory steps, and again before the timed ones."""
    memory: Positive = 1
    """Steps under the memory tracker; the last one is reported as `steady`."""
    timed: Positive = 5
    """Steps timed without a tracker."""
    communication: Count = 0
    """Steps under torch's profiler after the timed ones: time of collectives, and time in which a rank only waits for
    them. Only measured trials with several ranks have them."""

    @property
    def total(self) -> int:
        """All optimizer steps of a trial with a fixed batch (for a ramp see zerobench.config.derived.step_plan)."""
        return 1 + 2 * self.warmup + self.memory + self.timed + self.communication


class Blocks(StrEnum):
    """Implementation of blocks for which step times are expected."""

    TRANSFORMERS = "transformers"
    """zerobench's own: most operations are separate kernels."""
    FUSED = "fused"
    """Norms and activation are one kernel each, as in the published runs behind the rates: LLM Foundry's of 2023."""


class PredictionSpec(Spec):
    """Settings of a prediction; none defines the work, so a predicted trial matches its measured one."""

    rank: Count = 0
    """Rank that the one process runs (solo, emulated, simulated): padding differs between first and last."""
    gpu: str | None = None
    """Catalogue name of the emulated or simulated GPU; None simulates the ranks of a CPU run."""
    all_ranks: bool = False
    """Whether every rank runs, each in a process of its own (emulated); `rank` is then 0."""
    host_memory_bytes: Annotated[int, Field(gt=0)] | None = None
    """Memory of one node given to a plan; None: not judged."""
    blocks: Blocks = Blocks.TRANSFORMERS
    micro_batches: Annotated[int, Field(ge=3)] | None = None
    """Most micro-batches of a step to run (emulated, simulated): the first creates gradients, the second adds to them,
    the last hands them on, and all others equal the second; bytes that grow with them are computed by formula. None:
    all run."""


class OwnScript(Spec):
    """A user's own script, which zerobench did not plan: only observed parts of its work are known."""

    name: str = Field(min_length=1)
    """Name of the trial and of its folder: fixed before anything is known of the work."""
    unknown: tuple[str, ...] = ()
    """Unknown fields of the trial: their values have no meaning, and reports leave them empty."""


SCRIPT = "script"
"""Strategy of a script whose engine no ledger saw; otherwise it is that of the engine's ZeRO stage."""


@dataclass(frozen=True)
class Later:
    """Marks a field added after the first runs were kept: at its default it is not in the hash, so that theirs stay."""

    place: int
    """Its number in order of addition, which is the order of their columns: these are only ever appended."""


class NotWork:
    """Excludes a field from `config_hash`."""


T = TypeVar("T")
_NotWork = Annotated[T, NotWork()]


class TrialSpec(Spec):
    """One trial. `config_hash` covers all that defines the work, without evidence, steps, repeat or `nvme_path`: the
    swap folder depends on the machine.
    """

    model: ModelSpec
    strategy: str
    """Name of a strategy (see zerobench.config.derived.strategy)."""
    offload_optimizer: Offload = Offload.NONE
    offload_param: Offload = Offload.NONE
    nvme_path: _NotWork[str | None] = None
    """Folder on the NVMe device for offloaded states."""
    num_nodes: Positive = 1
    gpus_per_node: Positive = 1
    """Ranks per node; without GPUs a rank is a CPU process."""
    micro_batch_size: Positive = 1
    """Sequences per rank and forward pass."""
    gradient_accumulation_steps: Positive = 1
    batch_ramp: Annotated[BatchRamp | None, Later(5)] = None
    """Growth of the global batch to its size, by fewer accumulation steps at first; None: fixed."""
    sequence_length: Positive = 1024
    """Tokens per sequence."""
    precision: Precision = Precision.BF16
    precision_is_auto: _NotWork[bool] = False
    """Whether it was resolved from `auto` on the machine that planned the trial."""
    optimizer: Optimizer = Optimizer.ADAMW
    activation_checkpointing: Checkpointing = False
    attention: Attention = Attention.SDPA
    ds_config: dict[str, Any] = Field(default_factory=dict)
    """DeepSpeed keys laid over the generated config, as full dotted paths (`zero_optimization.reduce_bucket_size`),
    checked against DeepSpeed's own names."""
    ds_config_file: str | None = None
    """The user's own DeepSpeed JSON, used instead of the generated one."""
    bucket_bytes: Annotated[Positive | None, Later(1)] = None
    """Largest bucket of gradients that `ddp` reduces at once, in bytes; None: torch's default (1 MiB for the first
    bucket, 25 MiB for the others). torch's bucket_cap_mb is in MiB, DeepSpeed's reduce_bucket_size in elements: here
    the unit is in the name."""
    compression: Annotated[Compression, Later(2)] = Compression.NONE
    """Compression of `ddp`'s gradients in communication."""
    reshard_after_forward: Annotated[bool, Later(3)] = True
    """Whether `fsdp` frees a block's gathered parameters after its forward pass and gathers them again in backward."""
    consistency: Annotated[Consistency, Later(4)] = Consistency.SYNC
    """Whether the server of `parameter-server` waits for all workers before it updates."""
    hpz_partition_size: Annotated[Positive | None, Later(6)] = None
    """ZeRO++'s hpZ (Wang et al., arXiv 2306.10209, section 3.2): number of neighbouring ranks that share a second copy
    of the parameters, in their own type, from which backward gathers; None: no copy. DeepSpeed's
    zero_hpz_partition_size."""
    quantized_weights: Annotated[bool, Later(7)] = False
    """ZeRO++'s qwZ: parameters are gathered in blocks of 8 bits. DeepSpeed's zero_quantized_weights."""
    quantized_gradients: Annotated[bool, Later(8)] = False
    """ZeRO++'s qgZ: gradients are reduced in blocks of 4 bits, within nodes and then between them. DeepSpeed's
    zero_quantized_gradients."""
    mics_shard_size: Annotated[Positive | None, Later(9)] = None
    """MiCS (Zhang et al., arXiv 2205.00119): number of neighbouring ranks that divide all model states, so that each
    group has a whole copy; None: all ranks. Supported by `fsdp` (torch's HSDP)."""
    checkpoint: Annotated[CheckpointSpec | None, Later(10)] = None
    """Saves and resumption; None: neither. A prediction does neither, but has it to match the measured trial."""
    tf_strategy: Annotated[TfStrategy, Later(11)] = TfStrategy.MULTI_WORKER_MIRRORED
    """Strategy of tf.distribute for `tensorflow`."""
    pipeline_schedule: Annotated[PipelineSchedule, Later(12)] = PipelineSchedule.ONE_F_ONE_B
    """Order in which the stages of `pipeline` process the micro-batches of a step."""
    threads_per_rank: Annotated[Positive | None, Later(13)] = None
    """Threads of each rank on the host (OMP_NUM_THREADS); None divides the node's cores among its ranks. Equal numbers
    make ranks equal workers in any world size, as a speed-up over one process needs."""
    cross_entropy: Annotated[CrossEntropy, Later(14)] = CrossEntropy.FULL
    """Computation of output head and loss; the loss is the same, in `model_dtype` up to 16-bit rounding."""
    compile: Annotated[Compile, Later(15)] = Compile.NONE
    """Scope of one torch.compile graph, with inductor."""
    zero_init: Annotated[bool, Later(16)] = True
    """Whether the model of stage 3 is partitioned during construction, under deepspeed.zero.Init, as in transformers'
    Trainer. Otherwise every rank builds it in full on its device and deepspeed.initialize partitions it."""
    adapter: Annotated[Adapter | None, Later(18)] = None
    """Low-rank adapters that are trained while the model is frozen (LoRA); None: the model's own weights are trained.
    """
    frozen: Annotated[str | None, Later(19)] = None
    """A regular expression; weights with matching names are not trained. None: all are."""
    weights: Annotated[Weights, Later(20)] = Weights.DRAWN
    """Initialization of the weights: it affects start-up, and no step of training."""
    data: DataSpec = DataSpec()
    hyperparameters: HyperparameterSpec = HyperparameterSpec()
    steps: _NotWork[StepsSpec] = StepsSpec()
    timeout_s: _NotWork[Annotated[float, Field(gt=0)]] = 900.0
    """Seconds without progress of any rank (an import, a phase, a step) after which the trial counts as hung and is
    ended. As long as one rank progresses the trial continues, even slowly on a busy machine."""
    trust_remote_code: bool = False
    """Let transformers run code that ships with a model's config."""
    evidence: _NotWork[Evidence] = Evidence.MEASURED
    prediction: _NotWork[PredictionSpec] = PredictionSpec()
    repeat: _NotWork[Count] = 0
    """Index of the repetition of the same trial."""
    own: _NotWork[OwnScript | None] = None
    """Set if the trial is a user's own script, not planned by zerobench."""

    def knows(self, field: str) -> bool:
        """Return whether the value of `field` is known; false only for some fields of users' own scripts."""
        return self.own is None or field not in self.own.unknown

    @property
    def trains_all(self) -> bool:
        return self.adapter is None and self.frozen is None

    @property
    def trains_in_16_bits(self) -> bool:
        """Return whether trained weights and their gradients are in 16 bits; fp32 adapters are not."""
        return self.precision is not Precision.FP32 and not self.widens_adapters

    @property
    def widens_adapters(self) -> bool:
        """Return whether adapters are in fp32 next to a 16-bit model."""
        return self.precision is not Precision.FP32 and is_wide(self.adapter)

    @property
    def passes_all(self) -> bool:
        """Return whether backward reaches the first block even if nothing before it is trained.

        With checkpointing, transformers 5 requests the gradient of the embedding's output (modeling_utils.py,
        gradient_checkpointing_enable).
        """
        return bool(self.activation_checkpointing)

    @property
    def is_loaded(self) -> bool:
        return self.weights is not Weights.DRAWN

    @property
    def partitions_as_built(self) -> bool:
        """Return whether stage 3 uses zero.Init.

        transformers does not for quantised models (modeling_utils.py, `if is_deepspeed_zero3_enabled() and not
        is_quantized`): every rank first has the whole quantised model.
        """
        return self.zero_init and base_of(self.adapter) is None

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def peers_limit_s(self) -> float:
        """Seconds that a rank waits for the others in one operation.

        Well above `timeout_s`: a rank may wait for one that is still making progress, and the runner should be the one
        to detect a hang, since it has every rank's stack.
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
        """One GPU's share of the tokens of an optimizer step."""
        return self.global_batch_tokens / self.world_size

    @property
    def played_ranks(self) -> range:
        """Ranks that a prediction runs."""
        first = self.prediction.rank
        return range(self.world_size) if self.prediction.all_ranks else range(first, first + 1)

    @property
    def zero_stage(self) -> int | None:
        """ZeRO stage, or None for a strategy without DeepSpeed."""
        return int(self.strategy.removeprefix("zero")) if self.strategy.startswith("zero") else None

    @property
    def offloaded_to(self) -> set[Offload]:
        """Places of optimizer states and parameters other than the device; empty without offload."""
        return {self.offload_optimizer, self.offload_param} - {Offload.NONE}

    @cached_property
    def config_hash(self) -> str:
        """Twelve hex digits over all that defines the work, so that predictions match measurements."""
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
        """Stable name of the trial and of its folder: readable first, unique by its hash."""
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
        """Copy with the fields of `update`; pydantic would keep values computed from the old ones."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("config_hash", "parity_hash", "trial_id"):
            copied.__dict__.pop(name, None)
        return copied


@cache
def _marked(mark: type) -> tuple[str, ...]:
    """Fields of a trial with this mark."""
    fields = TrialSpec.model_fields.items()
    return tuple(name for name, field in fields if any(isinstance(entry, mark) for entry in field.metadata))


def slug(text: str) -> str:
    """Replace all but letters, digits, dot, dash and underscore in `text`, for a file name."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text)
    return name.strip(".")[:80] or "trial"
