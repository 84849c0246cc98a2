"""Optimizers of a trial: a new one is an entry here and a file under `rank/optimizers`.

An entry has what rules, formulas, configurations and reports need without running it: its states per parameter,
temporary memory of its step, its implementation under DeepSpeed, possible places of its states, and the trials whose
losses must agree with its own.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Any

from pydantic import Field

from zerobench.common.vocabulary import Category
from zerobench.config.trial.base import Spec

_FP32 = 4


class Optimizer(StrEnum):
    """Optimizer and implementation."""

    ADAMW = "adamw"
    """torch.optim.AdamW, for-each or plain loop as torch chooses for the device."""
    FUSED_ADAMW = "fused_adamw"
    """DeepSpeed's FusedAdam under ZeRO; torch.optim.AdamW(fused=True) without DeepSpeed."""
    CPU_ADAM = "cpu_adam"
    """DeepSpeedCPUAdam; for offloaded optimizer states."""
    ADAMW_8BIT = "adamw_8bit"
    """AdamW with both moments in 8 bits, in bitsandbytes' layout; in torch, passed to DeepSpeed."""
    SGD = "sgd"
    """torch.optim.SGD without momentum: no state, and it reveals gradient-scale errors that Adam hides."""
    LION = "lion"
    """Lion, a loop over tensors in torch, passed to DeepSpeed: its own FusedLion only runs on GPUs."""
    CPU_LION = "cpu_lion"
    """DeepSpeedCPULion; for offloaded optimizer states."""
    MUON = "muon"
    """DeepSpeed's Muon: matrices by orthogonal momentum, embeddings, head and vectors by torch's AdamW."""


class StatesPlace(StrEnum):
    """Possible places of an implementation's states under DeepSpeed."""

    ANY = "any"
    DEVICE = "device"
    HOST = "host"


class State(Spec):
    """One state of every parameter."""

    name: str
    """Its key in torch.optim.Optimizer.state."""
    category: Category
    """Category of its bytes in the ledger."""
    element_bytes: int = _FP32
    block_elements: int | None = None
    """Elements that share a scale in fp32; None without scales."""
    least_elements: int = 0
    """Smaller tensors are kept in fp32, without scales."""
    is_partial: bool = False
    """Whether only some parameters have it; it is then in no sum."""
    scale_name: str | None = None
    """Key of the scales, whose bytes are of the same category."""

    @property
    def bytes_per_element(self) -> float:
        """In a large tensor, with its scale."""
        return self.element_bytes + (0 if self.block_elements is None else _FP32 / self.block_elements)

    def nbytes(self, elements: int) -> int:
        """Bytes of a tensor of `elements`, with its scales."""
        if elements < self.least_elements:
            return _FP32 * elements
        scales = 0 if self.block_elements is None else -(-elements // self.block_elements)
        return self.element_bytes * elements + _FP32 * scales


class StepTemporaries(Spec):
    """Temporary memory of a step, in bytes per element of fp32 tensors."""

    foreach_bytes: int = 0
    """Per element of all tensors together, in torch's for-each version: on GPUs."""
    loop_bytes: int = 0
    """Per element of the largest tensor, in a loop over tensors: on the host."""
    always_loops: bool = False
    """Whether it has no for-each version."""
    piece_elements: int | None = None
    """Elements of a tensor per iteration; None: all."""

    def nbytes(self, tensors: Iterable[int], *, on_gpu: bool) -> int:
        """Largest temporary memory of a step over tensors of these elements, in bytes."""
        sizes = list(tensors)
        if on_gpu and not self.always_loops:
            return self.foreach_bytes * sum(sizes)
        largest = max(sizes, default=0)
        return self.loop_bytes * (largest if self.piece_elements is None else min(largest, self.piece_elements))


class DeepSpeedOptimizer(Spec):
    """Settings with which DeepSpeed makes it (runtime/engine.py, _configure_basic_optimizer)."""

    type: str
    """Value of `optimizer.type`; DeepSpeed accepts its own names in any case."""
    other_types: tuple[str, ...] = ()
    """Other values of `optimizer.type` that mean the same."""
    is_exact: bool = False
    """Whether the name is torch.optim's, where its case counts."""
    hyperparameters: tuple[str, ...]
    """Hyperparameters that it takes, by DeepSpeed's names."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further values of `optimizer.params`; a setting that is omitted there is None here."""
    is_tested: bool = True
    """Whether ZeRO accepts it without `zero_allow_untested_optimizer` (runtime/zero/utils.py)."""
    class_name: str | None = None
    """DeepSpeed's own class; None for torch's."""
    kernel: str | None = None
    """DeepSpeed's kernel, by its name under torch's extension cache; compiled on first use."""
    builder: str | None = None
    """DeepSpeed's builder of that kernel."""
    stage_3_settings: dict[str, Any] = Field(default_factory=dict)
    """Required values of `zero_optimization` at stage 3."""
    is_flattened_in_16_bits: bool = False
    """Whether stage 0 in 16 bits flattens its tensors (engine.py, _configure_fp16_optimizer: FP16_Optimizer)."""

    def is_named(self, kind: object) -> bool:
        """Return whether `kind`, a value of `optimizer.type`, means this one."""
        if self.is_exact:
            return kind == self.type
        return str(kind).lower() in {name.lower() for name in self.types}

    @property
    def types(self) -> tuple[str, ...]:
        """All values of `optimizer.type` that mean it."""
        return (self.type, *self.other_types)


class OptimizerInfo(Spec):
    """One optimizer, in one implementation."""

    name: Optimizer
    title: str
    """Name in its authors' spelling."""
    family: str
    """Trials of one family must have the same losses (TrialSpec.parity_hash)."""
    states: tuple[State, ...] = ()
    states_title: str = ""
    """Common name of all its states."""
    temporaries: StepTemporaries = StepTemporaries()
    moved_bytes: int = 0
    """Bytes per parameter through device memory, beyond those of torch's fused AdamW and its own states, gradients and
    parameters: from the operations of simulated steps (tests/estimate/time/test_replayed.py)."""
    piece_launches: int = 0
    """Kernels per `piece_elements`, or per tensor of its loop, from the same steps; 0 if all tensors share theirs."""
    temporaries_note: str | None = None
    """Sentence on its temporaries, with `{largest}` for their peak under DeepSpeed."""
    place: StatesPlace = StatesPlace.ANY
    instead: tuple[Optimizer, ...] = ()
    """Alternatives for where its states cannot be placed, the most similar first."""
    plain: Optimizer | None = None
    """Replacement without DeepSpeed; None: itself."""
    deepspeed: DeepSpeedOptimizer | None = None
    """None if DeepSpeed has none, and is passed the factory's."""
    factory: str | None = None
    """Module under zerobench.rank.optimizers that makes it; None if only DeepSpeed has it."""
    torch_class: str | None = None
    """Class that the factory makes."""
    torch_settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of that class besides the hyperparameters."""
    refused: dict[str, str] = Field(default_factory=dict)
    """Reason for each strategy that does not support it."""

    inexact: str | None = None
    """Reason why its losses always differ from the reference's; None if they do not."""
    inexact_in_parts: str | None = None
    """Reason why they differ with partitioned states; None: each element is updated by itself."""
    not_on_nvme: str | None = None
    """Reason why its states cannot be swapped to NVMe; None if they can."""
    inexact_where_clipped: str | None = None
    """Reason why they differ with partitioned states and clipped gradients."""
    not_saved: str | None = None
    """Reason why no checkpoint can contain it; None if one can."""
    is_compiled: bool = False
    """Whether its step is compiled by torch.compile."""
    unavailable: dict[str, str] = Field(default_factory=dict)
    """Reason for each evidence that does not support it."""

    @property
    def state_bytes(self) -> float:
        """Bytes of all states per parameter of a large tensor, without partial ones."""
        return sum(state.bytes_per_element for state in self.states if not state.is_partial)

    @property
    def has_partial_states(self) -> bool:
        """Return whether its states depend on the kinds of parameters in a model."""
        return any(state.is_partial for state in self.states)

    @property
    def kernel(self) -> str | None:
        return None if self.deepspeed is None else self.deepspeed.kernel

    @property
    def is_flattened_in_16_bits(self) -> bool:
        """Return whether stage 0 in 16 bits flattens its tensors."""
        return self.deepspeed is not None and self.deepspeed.is_flattened_in_16_bits

    @property
    def class_name(self) -> str | None:
        """Class of the optimizer in an engine."""
        return (self.deepspeed.class_name if self.deepspeed is not None else None) or self.torch_class

    @property
    def has_adams_moments(self) -> bool:
        """Return whether its states are Adam's two moments in fp32."""
        return {(state.name, state.element_bytes) for state in self.states} == {("exp_avg", 4), ("exp_avg_sq", 4)}

    def inexact_reason(self, *, in_parts: bool, is_clipped: bool) -> str | None:
        """Reason why its losses differ from the reference's; None if they do not. `in_parts`: partitioned states."""
        reasons = [self.inexact, self.inexact_in_parts if in_parts else None]
        reasons.append(self.inexact_where_clipped if in_parts and is_clipped else None)
        return next((why for why in reasons if why is not None), None)

    def can_place(self, *, offloaded: bool) -> bool:
        """Return whether its states can be on the host (`offloaded`) or on the device."""
        return self.place is StatesPlace.ANY or offloaded == (self.place is StatesPlace.HOST)

    def states_of(self, tensors: Iterable[int]) -> dict[Category, int]:
        """Bytes of its states over tensors of these elements, without partial ones."""
        sizes = list(tensors)
        bytes_by_category: dict[Category, int] = {}
        for state in (state for state in self.states if not state.is_partial):
            bytes_by_category[state.category] = bytes_by_category.get(state.category, 0) + sum(map(state.nbytes, sizes))
        return bytes_by_category


_ADAMS_MOMENTS = (
    State(name="exp_avg", category=Category.FIRST_MOMENT),
    State(name="exp_avg_sq", category=Category.SECOND_MOMENT),
)
_NO_KERAS = "not set up for Keras; use adamw or sgd"
_NEVER_SWAPPED = "not verified with states on NVMe; use cpu"
_IN_BLOCKS: dict[str, Any] = {"element_bytes": 1, "block_elements": 256, "least_elements": 4096}
TORCH_NAMES = ("lr", "betas", "eps", "weight_decay")
"""Names of AdamW's hyperparameters in torch and DeepSpeed."""
_adam = partial(OptimizerInfo, family="adamw", states=_ADAMS_MOMENTS, states_title="Adam's moments")
_deepspeeds_adam = partial(DeepSpeedOptimizer, type="AdamW", other_types=("Adam",), hyperparameters=TORCH_NAMES)

_ADAMW = _adam(
    name=Optimizer.ADAMW,
    title="torch.optim.AdamW",
    # torch/optim/adam.py: for-each, the second moments' roots; as a loop, root and quotient of one tensor.
    temporaries=StepTemporaries(foreach_bytes=4, loop_bytes=8),
    moved_bytes=52,
    temporaries_note=(
        "temporaries of torch.optim.AdamW's step: up to {largest}, as large as the second moment at work; DeepSpeed's "
        "own Adam makes none"
    ),
    deepspeed=_deepspeeds_adam(settings={"adam_w_mode": True, "torch_adam": True}),
    factory="adamw",
    torch_class="AdamW",
)
"""Common values of the implementations of AdamW."""

OPTIMIZERS: dict[Optimizer, OptimizerInfo] = {
    info.name: info
    for info in (
        _ADAMW,
        _adam(
            name=Optimizer.FUSED_ADAMW,
            title="FusedAdam",
            place=StatesPlace.DEVICE,
            instead=(Optimizer.CPU_ADAM, Optimizer.ADAMW),
            deepspeed=_deepspeeds_adam(
                settings={"adam_w_mode": True},
                class_name="FusedAdam",
                kernel="fused_adam",
                builder="FusedAdamBuilder",
                is_flattened_in_16_bits=True,
            ),
            factory="adamw",
            torch_class="AdamW",
            torch_settings={"fused": True},
            refused={"tensorflow": "Keras has no fused AdamW; use adamw"},
        ),
        _adam(
            name=Optimizer.CPU_ADAM,
            title="CPUAdam",
            place=StatesPlace.HOST,
            instead=(Optimizer.ADAMW, Optimizer.FUSED_ADAMW),
            plain=Optimizer.ADAMW,
            deepspeed=_deepspeeds_adam(
                settings={"adam_w_mode": True},
                class_name="DeepSpeedCPUAdam",
                kernel="cpu_adam",
                builder="CPUAdamBuilder",
            ),
        ),
        OptimizerInfo(
            name=Optimizer.ADAMW_8BIT,
            title="AdamW in 8 bits",
            family="adamw_8bit",
            states=(
                State(name="state1", scale_name="absmax1", category=Category.FIRST_MOMENT, **_IN_BLOCKS),
                State(name="state2", scale_name="absmax2", category=Category.SECOND_MOMENT, **_IN_BLOCKS),
            ),
            states_title="Adam's moments in 8 bits",
            # Both moments of a piece in fp32, and one of them on its way to its codes.
            temporaries=StepTemporaries(loop_bytes=16, always_loops=True, piece_elements=2**20),
            moved_bytes=260,
            piece_launches=35,
            temporaries_note="pieces of the 8-bit moments, decoded in the step: up to {largest}",
            factory="adamw_8bit",
            torch_class="AdamW8bit",
            inexact_in_parts="its quantization blocks are cut from a rank's partition, not from the model's tensors",
            not_on_nvme=_NEVER_SWAPPED,
            refused={
                "tensorflow": _NO_KERAS,
                **dict.fromkeys(("fsdp", "tensor"), "its states are not DTensors; use ddp"),
            },
        ),
        OptimizerInfo(
            name=Optimizer.SGD,
            title="torch.optim.SGD",
            family="sgd",
            temporaries=StepTemporaries(foreach_bytes=4, loop_bytes=4),  # torch/optim/sgd.py: the decayed gradient
            moved_bytes=8,
            deepspeed=DeepSpeedOptimizer(
                type="SGD", is_exact=True, hyperparameters=("lr", "weight_decay"), is_tested=False
            ),
            factory="sgd",
            torch_class="SGD",
        ),
        OptimizerInfo(
            name=Optimizer.LION,
            title="Lion",
            family="lion",
            states=(State(name="exp_avg", category=Category.FIRST_MOMENT),),
            states_title="Lion's moments",
            temporaries=StepTemporaries(loop_bytes=4, always_loops=True),
            moved_bytes=28,
            piece_launches=5,
            temporaries_note="temporary of Lion's step: up to {largest}, as large as the tensor it updates",
            factory="lion",
            torch_class="Lion",
            not_on_nvme=_NEVER_SWAPPED,
            refused={"tensorflow": _NO_KERAS},
        ),
        OptimizerInfo(
            name=Optimizer.CPU_LION,
            title="CPULion",
            family="lion",
            states=_ADAMS_MOMENTS,  # ops/lion/cpu_lion.py makes the second as well, and never touches it
            states_title="Lion's moments and unused second ones",
            place=StatesPlace.HOST,
            instead=(Optimizer.LION,),
            plain=Optimizer.LION,
            deepspeed=DeepSpeedOptimizer(
                type="Lion",
                hyperparameters=("lr", "betas", "weight_decay"),
                class_name="DeepSpeedCPULion",
                kernel="cpu_lion",
                builder="CPULionBuilder",
            ),
            inexact=(
                "CPULion moves weights whose momentum and gradient are both zero, such as those of tokens that did not "
                "occur (ops/csrc/lion, copysign); Lion leaves them"
            ),
            not_on_nvme=_NEVER_SWAPPED,
            refused={"tensorflow": _NO_KERAS},
        ),
        OptimizerInfo(
            name=Optimizer.MUON,
            title="Muon",
            family="muon",
            states=(
                State(name="momentum_buffer", category=Category.FIRST_MOMENT),  # or exp_avg, of the rest
                State(name="exp_avg_sq", category=Category.SECOND_MOMENT, is_partial=True),
            ),
            states_title="Muon's momentum buffers",
            deepspeed=DeepSpeedOptimizer(
                type="Muon",
                hyperparameters=TORCH_NAMES,
                settings={"torch_adam": True},
                class_name="MuonWithAuxAdam",
                stage_3_settings={"reduce_scatter": False},  # stage3.py, __init__
            ),
            factory="muon",
            torch_class="MuonWithAuxAdam",
            inexact_where_clipped=(
                "DeepSpeed clips Muon's update there, to the norm that the gradients should have (stage_1_and_2.py and "
                "stage3.py, step); with hyperparameters.gradient_clipping 0 they are"
            ),
            not_on_nvme=_NEVER_SWAPPED,
            not_saved="not verified across a checkpoint",
            is_compiled=True,
            unavailable={
                **dict.fromkeys(("emulated", "simulated"), "its update is compiled, which needs real values"),
                "formula": "its states and temporaries depend on each tensor's shape and name",
            },
            refused={
                "tensorflow": _NO_KERAS,
                **dict.fromkeys(("fsdp", "tensor"), "its update needs whole matrices; use zero1 to zero3"),
                **dict.fromkeys(
                    ("pipeline", "rpc-pipeline", "parameter-server", "horovod"),
                    "it tells embeddings from other matrices by name, and names are unknown there; use ddp",
                ),
            },
        ),
    )
}
"""In the order of help."""


def plain_optimizer(optimizer: Optimizer) -> OptimizerInfo:
    """Replacement of an optimizer without DeepSpeed."""
    info = OPTIMIZERS[optimizer]
    return info if info.plain is None else OPTIMIZERS[info.plain]


def deepspeeds_adamw(*, offloaded: bool) -> Optimizer:
    """DeepSpeed's default for `AdamW`: its own kernel for where the states are."""
    settings = {"adam_w_mode": True}
    candidates = (info for info in OPTIMIZERS.values() if info.deepspeed and info.deepspeed.settings == settings)
    return next(info.name for info in candidates if info.can_place(offloaded=offloaded))


def optimizer_kernels() -> list[str]:
    """All DeepSpeed kernels of optimizers."""
    return [info.kernel for info in OPTIMIZERS.values() if info.kernel is not None]


STATE_CATEGORIES: dict[str, Category] = {
    "momentum_buffer": Category.FIRST_MOMENT,  # of torch's SGD with momentum, which a script may run
    **{
        name: state.category
        for info in OPTIMIZERS.values()
        for state in info.states
        for name in (state.name, state.scale_name)
        if name is not None
    },
}
"""Ledger categories of states, by their keys in torch.optim.Optimizer.state."""
