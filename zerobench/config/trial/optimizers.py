"""The optimizers that a trial may name: a new one is an entry here and a file under `rank/optimizers`.

An entry says what rules, formulas, configurations and reports need to know of an optimizer without running it: which
states it keeps of each parameter, what its step takes for a moment, who makes it under DeepSpeed, where its states may
lie, and with whose losses its own must agree.
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
    """The optimizer and which implementation of it runs."""

    ADAMW = "adamw"
    """torch.optim.AdamW, for-each or plain loop as torch chooses for the device."""
    FUSED_ADAMW = "fused_adamw"
    """DeepSpeed's FusedAdam under ZeRO; torch.optim.AdamW(fused=True) without DeepSpeed."""
    CPU_ADAM = "cpu_adam"
    """DeepSpeedCPUAdam; runs where the optimizer states are offloaded."""
    ADAMW_8BIT = "adamw_8bit"
    """AdamW with both moments in 8 bits, laid out as bitsandbytes lays them; in torch, which DeepSpeed is handed."""
    SGD = "sgd"
    """torch.optim.SGD without momentum: no state, and it shows gradient-scale errors that Adam hides."""
    LION = "lion"
    """Lion, a loop over tensors in torch, which DeepSpeed is handed: its own FusedLion is for GPUs alone."""
    CPU_LION = "cpu_lion"
    """DeepSpeedCPULion; runs where the optimizer states are offloaded."""
    MUON = "muon"
    """DeepSpeed's Muon: matrices by orthogonal momentum, embeddings, head and vectors by torch's AdamW."""


class StatesPlace(StrEnum):
    """Where the states of an implementation can lie under DeepSpeed."""

    ANY = "any"
    DEVICE = "device"
    HOST = "host"


class State(Spec):
    """One state that is kept of every parameter."""

    name: str
    """Its key in torch.optim.Optimizer.state."""
    category: Category
    """The ledger's name for its bytes."""
    element_bytes: int = _FP32
    block_elements: int | None = None
    """Elements that share a scale in fp32; None where there is none."""
    least_elements: int = 0
    """Tensors of fewer are kept in fp32, without scales."""
    is_partial: bool = False
    """Whether it is kept of some parameters alone, which is in no sum."""
    scale_name: str | None = None
    """The key of these scales, whose bytes are of the same category."""

    @property
    def bytes_per_element(self) -> float:
        """In a large tensor, its scale among them."""
        return self.element_bytes + (0 if self.block_elements is None else _FP32 / self.block_elements)

    def nbytes(self, elements: int) -> int:
        """Bytes of a tensor of so many elements, and of its scales."""
        if elements < self.least_elements:
            return _FP32 * elements
        scales = 0 if self.block_elements is None else -(-elements // self.block_elements)
        return self.element_bytes * elements + _FP32 * scales


class StepTemporaries(Spec):
    """What a step makes and frees: bytes an element, all of fp32 tensors."""

    foreach_bytes: int = 0
    """For each element of all tensors together, where torch's for-each version runs: on GPUs."""
    loop_bytes: int = 0
    """For each element of the largest tensor, where it loops over them: on the host."""
    always_loops: bool = False
    """Whether it has no for-each version."""
    piece_elements: int | None = None
    """Elements of a tensor that it works on at a time; None: all of them."""

    def nbytes(self, tensors: Iterable[int], *, on_gpu: bool) -> int:
        """The most that a step over `tensors` of so many elements takes at a time."""
        sizes = list(tensors)
        if on_gpu and not self.always_loops:
            return self.foreach_bytes * sum(sizes)
        largest = max(sizes, default=0)
        return self.loop_bytes * (largest if self.piece_elements is None else min(largest, self.piece_elements))


class DeepSpeedOptimizer(Spec):
    """How DeepSpeed makes it of its configuration (runtime/engine.py, _configure_basic_optimizer)."""

    type: str
    """What `optimizer.type` is written as; DeepSpeed takes its own names in any case."""
    other_types: tuple[str, ...] = ()
    """Other values of `optimizer.type` that mean the same."""
    is_exact: bool = False
    """Whether the name is torch.optim's, where its case counts."""
    hyperparameters: tuple[str, ...]
    """Which of a trial's it takes, by DeepSpeed's names."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What else stands in `optimizer.params`; a setting that is left out there is None here."""
    is_tested: bool = True
    """Whether ZeRO takes it without `zero_allow_untested_optimizer` (runtime/zero/utils.py)."""
    class_name: str | None = None
    """DeepSpeed's own class; None where it is torch's."""
    kernel: str | None = None
    """DeepSpeed's kernel that it runs, by its name under torch's extension cache; compiled at first use."""
    builder: str | None = None
    """DeepSpeed's builder of that kernel."""
    stage_3_settings: dict[str, Any] = Field(default_factory=dict)
    """What `zero_optimization` must say at stage 3."""
    is_flattened_in_16_bits: bool = False
    """Whether stage 0 in 16 bits flattens what it updates (engine.py, _configure_fp16_optimizer: FP16_Optimizer)."""

    def is_named(self, kind: object) -> bool:
        """Whether `kind`, a value of `optimizer.type`, is this."""
        if self.is_exact:
            return kind == self.type
        return str(kind).lower() in {name.lower() for name in self.types}

    @property
    def types(self) -> tuple[str, ...]:
        """Every value of `optimizer.type` that means it."""
        return (self.type, *self.other_types)


class OptimizerInfo(Spec):
    """One optimizer, in one implementation."""

    name: Optimizer
    title: str
    """As its authors write it."""
    family: str
    """Trials of one family must have the same losses (TrialSpec.parity_hash)."""
    states: tuple[State, ...] = ()
    states_title: str = ""
    """What people call them all."""
    temporaries: StepTemporaries = StepTemporaries()
    moved_bytes: int = 0
    """A parameter, through device memory by its kernels beyond what those of torch's fused AdamW and its own states,
    gradients and parameters do: by the operations of simulated steps (tests/estimate/time/test_replayed.py)."""
    piece_launches: int = 0
    """Kernels of one of its `piece_elements`, or of each tensor that it loops over, by the same steps; none where all
    tensors have theirs together."""
    temporaries_note: str | None = None
    """A sentence on them, with `{largest}` for the most that they take under DeepSpeed."""
    place: StatesPlace = StatesPlace.ANY
    instead: tuple[Optimizer, ...] = ()
    """What to ask for where its states cannot lie, the likest first."""
    plain: Optimizer | None = None
    """What runs in its place where DeepSpeed does not; None: itself."""
    deepspeed: DeepSpeedOptimizer | None = None
    """None where DeepSpeed has none, and is handed what the factory makes."""
    factory: str | None = None
    """The module under zerobench.rank.optimizers that makes it; None where DeepSpeed alone has it."""
    torch_class: str | None = None
    """The class that this makes."""
    torch_settings: dict[str, Any] = Field(default_factory=dict)
    """What this module is told beside the hyperparameters."""
    refused: dict[str, str] = Field(default_factory=dict)
    """Why there is none of it under some strategies."""

    inexact: str | None = None
    """Why its losses are not those of the reference, wherever it runs; None: they are."""
    inexact_in_parts: str | None = None
    """Why they are not where states are partitioned; None: each element is updated by itself."""
    not_on_nvme: str | None = None
    """Why its states cannot be swapped to NVMe; None where they can."""
    inexact_where_clipped: str | None = None
    """Why they are not where states are partitioned and gradients clipped."""
    not_saved: str | None = None
    """Why no checkpoint holds it; None where one can."""
    is_compiled: bool = False
    """Whether its step is compiled by torch.compile."""
    unavailable: dict[str, str] = Field(default_factory=dict)
    """Why it cannot be run in some worlds, by their evidence."""

    @property
    def state_bytes(self) -> float:
        """Bytes of all states for one parameter of a large tensor, without partial ones."""
        return sum(state.bytes_per_element for state in self.states if not state.is_partial)

    @property
    def has_partial_states(self) -> bool:
        """Whether how much it keeps depends on which parameters a model has."""
        return any(state.is_partial for state in self.states)

    @property
    def kernel(self) -> str | None:
        """DeepSpeed's kernel that it runs."""
        return None if self.deepspeed is None else self.deepspeed.kernel

    @property
    def is_flattened_in_16_bits(self) -> bool:
        """Whether stage 0 in 16 bits flattens what it updates."""
        return self.deepspeed is not None and self.deepspeed.is_flattened_in_16_bits

    @property
    def class_name(self) -> str | None:
        """The class that an engine holds."""
        return (self.deepspeed.class_name if self.deepspeed is not None else None) or self.torch_class

    @property
    def has_adams_moments(self) -> bool:
        """Whether its states are Adam's two moments in fp32."""
        return {(state.name, state.element_bytes) for state in self.states} == {("exp_avg", 4), ("exp_avg_sq", 4)}

    def why_inexact(self, *, in_parts: bool, is_clipped: bool) -> str | None:
        """Why its losses are not those of the reference; None: they are. `in_parts`: states are partitioned."""
        reasons = [self.inexact, self.inexact_in_parts if in_parts else None]
        reasons.append(self.inexact_where_clipped if in_parts and is_clipped else None)
        return next((why for why in reasons if why is not None), None)

    def may_lie(self, *, offloaded: bool) -> bool:
        """Whether its states can be where they are asked to be."""
        return self.place is StatesPlace.ANY or offloaded == (self.place is StatesPlace.HOST)

    def states_of(self, tensors: Iterable[int]) -> dict[Category, int]:
        """Bytes of its states over `tensors` of so many elements, without partial ones."""
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
"""What torch and DeepSpeed call the hyperparameters of AdamW."""
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
"""What the other implementations of AdamW have in common with torch's own."""

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
"""In the order in which help lists them."""


def without_deepspeed(optimizer: Optimizer) -> OptimizerInfo:
    """What runs where DeepSpeed does not."""
    info = OPTIMIZERS[optimizer]
    return info if info.plain is None else OPTIMIZERS[info.plain]


def deepspeeds_adamw(*, offloaded: bool) -> Optimizer:
    """What DeepSpeed makes of `AdamW` by itself: a kernel of its own, where the states lie."""
    settings = {"adam_w_mode": True}
    candidates = (info for info in OPTIMIZERS.values() if info.deepspeed and info.deepspeed.settings == settings)
    return next(info.name for info in candidates if info.may_lie(offloaded=offloaded))


def optimizer_kernels() -> list[str]:
    """Every kernel of DeepSpeed that some optimizer runs."""
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
"""The ledger's names of states, by their keys in torch.optim.Optimizer.state."""
