"""The terms of the lower bound of a step: the least seconds of each kind of work, from what a rank's record counted.

Each term is split in two, because the update waits for all gradients (their norm, the overflow check) and so cannot
overlap with the passes that make them: `passes_s` (forward and backward of all micro-steps) and `update_s` (the phase
`step`). None: a figure is missing, and the sentence says which; nothing is then added to the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from zerobench.common.errors import UserError
from zerobench.common.units import format_bytes, format_seconds
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.deepspeed.case import Case
from zerobench.config.derived.batch import micro_batches_per_step, model_parallel_size
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.links import Links
from zerobench.config.models.architecture import complete, dimensions
from zerobench.config.trial.recomputation import attention_again
from zerobench.config.trial.trial import Attention, Evidence, Offload, TrialSpec
from zerobench.estimate.clock.collectives import (
    KindTraffic,
    bytes_per_element,
    traffic_by_kind,
    trained_bytes_per_element,
)
from zerobench.estimate.clock.links import nodes_of, transfer_s
from zerobench.estimate.clock.trace import StepTrace, unpack
from zerobench.estimate.memory.deepspeed.setting import Setting
from zerobench.estimate.memory.record import formula_setting
from zerobench.records.instants import OPTIMIZER_STATES, end_instant
from zerobench.records.records import RankRecord

PASSES = (Phase.FORWARD, Phase.BACKWARD)
UPDATE = (Phase.STEP,)
_TELLING = 0.001
"""Collectives smaller than this part of the largest (a norm, a flag) count and are not named."""


@dataclass(frozen=True)
class Term:
    """The least seconds of one kind of work in one optimizer step."""

    name: str
    passes_s: float | None
    update_s: float | None
    sentence: str
    """How it comes about, or what is missing."""

    @property
    def total_s(self) -> float | None:
        """Both parts; None where either is missing."""
        return None if self.passes_s is None or self.update_s is None else self.passes_s + self.update_s


@dataclass(frozen=True)
class Work:
    """One rank's record, what was asked of it, and what it runs on."""

    rank: RankRecord
    spec: TrialSpec
    gpu: Gpu
    links: Links
    case: Case | None
    """DeepSpeed's configuration; None for a strategy without it."""

    @property
    def partition_bytes(self) -> float | None:
        """Bytes of one rank's partition of the parameters in their own type: 2P/N in 16 bits; None: P is not known.

        The mean over ranks: padding makes the largest a little larger.
        """
        counts = self.rank.parameters
        element = trained_bytes_per_element(self.spec)
        return None if counts is None else counts.trainable * element / state_shard_size(self.spec)

    @cached_property
    def setting(self) -> Setting | None:
        """Of DeepSpeed's formulas; None where there is no closed form."""
        try:
            return formula_setting(self.spec)
        except UserError:
            return None

    @cached_property
    def trace(self) -> StepTrace | None:
        """The issue order that the rank's record kept, if it did. Raises UserError where that is none."""
        if self.rank.step_trace is None:
            return None
        try:
            return unpack(self.rank.step_trace)
        except ValueError as error:
            raise UserError(f"step_trace of rank {self.rank.rank} of {self.rank.trial_id}: {error}") from error

    def live_bytes(self, phase: Phase, place: Place, *categories: Category) -> int:
        """Bytes live at the end of a phase of the steady step."""
        instant = end_instant(self.rank, StepKind.STEADY, phase, place)
        return 0 if instant is None else sum(instant.categories.get(category, 0) for category in categories)


def missing(name: str, why: str) -> Term:
    """A term that is left out of the bound."""
    return Term(name, None, None, f"{name}: left out, {why}")


def timed(name: str, passes_s: float, update_s: float, sentence: str) -> Term:
    """A term with its seconds behind its sentence."""
    return Term(name, passes_s, update_s, f"{sentence}: {format_seconds(passes_s + update_s)}")


def compute(work: Work) -> Term:
    """FLOPs, counted or by formula (estimate/memory/terms/passes.py), over the GPU's dense peak for the trial's
    precision.

    torch.utils.flop_counter counts attention as a full square; fused kernels skip what the causal mask hides, so that
    is taken off (`hidden_flops`): the bound must hold for them too. Elementwise work is not counted.
    """
    peak = {str(dtype): rate for dtype, rate in work.gpu.peak_tflops.items()}.get(work.spec.precision.value)
    counted = _flops(work)
    if not counted:
        return missing("compute", "no FLOPs were counted")
    if peak is None:
        return missing("compute", f"the catalogue has no {work.spec.precision.value} peak for {work.gpu.name}")
    passes = float(sum(counted.get(phase, 0) for phase in PASSES))
    hidden = hidden_flops(work.spec, passes)
    update = float(counted.get(Phase.STEP, 0))
    sentence = (
        f"compute: {_tflop(passes + update)} {'by formula' if _is_formula(work) else 'counted'}"
        + (f", less {_tflop(hidden)} skipped by causal attention," if hidden else "")
        + f" at {peak:g} TFLOP/s ({work.spec.precision.value}, dense)"
    )
    return timed("compute", (passes - hidden) / (peak * 1e12), update / (peak * 1e12), sentence)


def _tflop(flops: float) -> str:
    return f"{flops / 1e12:,.3g} TFLOP" if flops < 1e15 else f"{flops / 1e12:,.0f} TFLOP"


def _flops(work: Work) -> dict[Phase, float]:
    """FLOPs of a steady step by phase, what is computed again among them."""
    if _is_formula(work) and not work.rank.flops and work.rank.flops_per_step is not None:
        return {Phase.BACKWARD: work.rank.flops_per_step}  # a record of before passes had FLOPs of their own
    return {row.phase: row.flops for row in work.rank.flops if row.step is StepKind.STEADY}


def _is_formula(work: Work) -> bool:
    return work.spec.evidence is Evidence.FORMULA


def hidden_flops(spec: TrialSpec, counted: float) -> float:
    """How many of the `counted` FLOPs of a step's passes a kernel may skip because the causal mask hides them.

    Of s x s pairs of positions s (s+1)/2 are seen, or fewer with a sliding window. The counter gives 4 L H Q s^2 a
    sequence forward, 10 backward (five matrix products), and 4 more where forward runs again. Where the sizes are not
    known all that was counted is taken for attention, which keeps the bound low.
    """
    if spec.attention is Attention.EAGER:
        return 0.0
    length, config = spec.sequence_length, complete(spec.model)
    window = config.get("sliding_window")
    bounded = isinstance(window, int) and window > 0 and config.get("use_sliding_window") is not False
    seen = min(length, window) if isinstance(window, int) and bounded else length
    pairs = seen * (seen + 1) / 2 + (length - seen) * seen
    sizes = dimensions(spec.model)
    attention = counted
    if sizes.num_layers and sizes.num_heads and sizes.head_dim:
        products = 14 * sizes.num_layers + 4 * attention_again(spec.activation_checkpointing, sizes.num_layers)
        sequences = spec.micro_batch_size * micro_batches_per_step(spec, spec.world_size - 1)  # the last rank trains
        attention = products * sizes.num_heads * sizes.head_dim * length**2 * sequences / model_parallel_size(spec)
    return min(attention, counted) * (1 - pairs / length**2)


def communication(work: Work) -> Term:
    """Collectives over the links by the bounds of links.py, those of the passes and those of the update apart."""
    if work.spec.world_size == 1:
        return Term("communication", 0.0, 0.0, "communication: none with one rank")
    traffic = traffic_by_kind(work.rank, work.spec.precision)
    if not traffic:
        return missing("communication", "no collectives were counted")
    times = [
        transfer_s(traffic_by_kind(work.rank, work.spec.precision, phases=phases), work.spec.gpus_per_node, work.links)
        for phases in (PASSES, UPDATE)
    ]
    if times[0] is None or times[1] is None:
        return missing("communication", f"the catalogue has no rate for {_missing_link(work, traffic)}")
    return timed("communication", times[0], times[1], f"communication: {_largest(traffic)} over {_rates(work)}")


def _missing_link(work: Work, traffic: list[KindTraffic]) -> str:
    per_node = work.spec.gpus_per_node
    if any(nodes_of(collective, per_node) > 1 for collective in traffic) and work.links.network_gb_per_s is None:
        return "the network between nodes"
    return f"the link between GPUs of {work.gpu.name}, or a collective is not known"


def _largest(traffic: list[KindTraffic]) -> str:
    """Collectives with most bytes; a group that is no node's and not the world is told by its nodes."""
    return ", ".join(
        f"{collective.kind} of {format_bytes(collective.message_bytes)} among {collective.group_size} ranks"
        + (f" on {collective.num_nodes} nodes" if (collective.num_nodes or 1) > 1 else "")
        for collective in traffic
        if collective.message_bytes >= _TELLING * traffic[0].message_bytes
    )


def _rates(work: Work) -> str:
    link, network = work.links.link_gb_per_s, work.links.network_gb_per_s
    parts = [f"{link:g} GB/s each way between GPUs"] if link is not None else []
    if work.spec.num_nodes > 1 and network is not None:
        parts.append(f"{network:g} GB/s per GPU each way between nodes")
    return " and ".join(parts)


def optimizer(work: Work) -> Term:
    """Optimizer states read and written once, gradients read, parameters written, over the memory that holds them.

    States in host memory, or swapped through it, cross the host's memory bandwidth, which the node's ranks share.
    """
    on_device, on_host = _update_bytes(work), _host_update_bytes(work)
    memory, host = work.gpu.memory_gb_per_s, work.links.host_memory_gb_per_s
    parts = []
    if on_device and memory is not None:
        parts.append(f"{format_bytes(on_device)} through device memory at {memory:g} GB/s")
    if on_host and host is not None:
        parts.append(f"{format_bytes(on_host)} a node through host memory at {host:g} GB/s")
    if parts:
        return timed("optimizer", 0.0, max(update_seconds(work)), f"optimizer: {' beside '.join(parts)}")
    if on_host:
        return missing("optimizer", "host memory bandwidth not given")
    if on_device:
        return missing("optimizer", f"the catalogue has no memory bandwidth for {work.gpu.name}")
    return missing("optimizer", "no memory ledger of a steady step")


def update_seconds(work: Work) -> tuple[float, float]:
    """Of the update on the device and on the host, none where a rate is not known."""
    pairs = (
        (_update_bytes(work), work.gpu.memory_gb_per_s),
        (_host_update_bytes(work), work.links.host_memory_gb_per_s),
    )
    on_device, on_host = (0.0 if rate is None else nbytes / (rate * 1e9) for nbytes, rate in pairs)
    return on_device, on_host


def updated_parameters(work: Work) -> float:
    """That the rank itself updates on the device: by its master weights of 4 bytes each, or all that it trains."""
    if master := work.live_bytes(Phase.STEP, Place.DEVICE, Category.MASTER_WEIGHTS):
        return master / 4
    parameters = work.live_bytes(Phase.STEP, Place.DEVICE, Category.PARAMETERS)
    held = parameters / bytes_per_element(work.spec.precision)
    return held if work.rank.parameters is None else min(held, work.rank.parameters.trainable)


def _host_update_bytes(work: Work) -> int:
    """Of all ranks of a node."""
    states = sum(work.live_bytes(Phase.STEP, place, *OPTIMIZER_STATES) for place in (Place.HOST, Place.NVME))
    return 2 * states * work.spec.gpus_per_node


def _update_bytes(work: Work) -> float:
    """Bytes that the update moves through device memory: states twice, gradients once, new parameters once."""
    states = work.live_bytes(Phase.STEP, Place.DEVICE, *OPTIMIZER_STATES)
    master = work.live_bytes(Phase.STEP, Place.DEVICE, Category.MASTER_WEIGHTS)
    offloaded = work.spec.offload_optimizer is not Offload.NONE
    if offloaded and not states:
        return 0.0
    # With master weights the parameters are written from them; without, they are updated in place.
    updated = updated_parameters(work) * trained_bytes_per_element(work.spec)
    gradients = work.live_bytes(Phase.BACKWARD, Place.DEVICE, Category.GRADIENTS)
    return 2 * states + min(gradients, updated) + (updated if master else 2 * updated)
