"""The ZeRO paper's closed forms: model states of one rank, and elements that one rank moves in a step.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054,
section 3.1 and 5, figure 1 and table 1 (memory), section 7 (communication). With P parameters (the paper's psi), N
ranks and mixed-precision Adam each rank keeps 2P (parameters) + 2P (gradients) + KP with K = 12 (fp32 weights, first
and second moment): stage 1 divides KP by N, stage 2 the gradients too, stage 3 the parameters too.

The paper speaks of mixed-precision Adam alone. The same reasoning gives the rest: in fp32 no second copy of the weights
is needed, 4P + 4P + 8P; SGD without momentum keeps no moments, K = 4 in 16 bits and 0 in fp32. Terms are exact
quotients, so they are fractions of bytes: padding is not in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from zerobench.common.vocabulary import Phase
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer
from zerobench.config.trial.trial import Precision

ADAM_K = 12
"""Bytes a parameter of mixed-precision Adam's states (section 3.1)."""


class BytesPerParameter(NamedTuple):
    """Bytes a parameter, before anything is divided."""

    parameters: int
    gradients: int
    optimizer: float
    """The paper's K."""


MIXED_PRECISION_ADAM = BytesPerParameter(2, 2, ADAM_K)
"""The case that the paper speaks of."""


@dataclass(frozen=True)
class ModelStates:
    """Bytes of model states on one rank, unrounded."""

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        """All model states of one rank."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


class Shares(NamedTuple):
    """Into how many parts each state is cut."""

    parameters: int
    gradients: int
    optimizer: int


class Collective(NamedTuple):
    """One pass of a collective over the model."""

    phase: Phase
    kind: str
    """As in zerobench.records.records.CollectiveTraffic."""
    elements: int
    """Of the whole message."""
    moved_elements: int
    """That one rank sends or receives, for many ranks: twice the message for an all-reduce (section 7.1)."""


def bytes_per_parameter(precision: Precision, optimizer: Optimizer) -> BytesPerParameter:
    """The terms' factors for a precision and an optimizer: the paper's for 16-bit Adam, the same reasoning elsewhere.

    16-bit training adds fp32 master weights; Adam keeps two fp32 moments, SGD without momentum none.
    """
    moments = OPTIMIZERS[optimizer].state_bytes
    if precision is Precision.FP32:
        return BytesPerParameter(4, 4, moments)
    return BytesPerParameter(2, 2, 4 + moments)


def shares(stage: int, world_size: int) -> Shares:
    """Parts that a stage cuts each state into: P_os the optimizer's, P_os+g gradients too, P_os+g+p all (figure 1)."""
    return Shares(*(world_size if stage >= first else 1 for first in (3, 2, 1)))


def model_states(
    num_params: int, world_size: int, stage: int, sizes: BytesPerParameter = MIXED_PRECISION_ADAM
) -> ModelStates:
    """Bytes of model states on one of `world_size` ranks at ZeRO `stage` (figure 1; section 5.1 to 5.3).

    Stage 0 is plain data parallelism, the paper's baseline.
    """
    parts = shares(stage, world_size)
    return ModelStates(*(size * num_params / part for size, part in zip(sizes, parts, strict=True)))


def communication_elements(num_params: int, stage: int) -> int:
    """Elements that one rank moves in a step (section 7): 2P for data parallelism, P_os and P_os+g, 3P for P_os+g+p."""
    return sum(collective.moved_elements for collective in collectives(num_params, stage))


def collectives(num_params: int, stage: int) -> tuple[Collective, ...]:
    """The collectives of one step without gradient accumulation, by the paper's account (section 7.1 and 7.2).

    A reduce-scatter or an all-gather moves P, an all-reduce is one after the other. DeepSpeed does more at stages 1 and
    2: it all-reduces whole buckets there unless use_multi_rank_bucket_allreduce is false, which moves P more.
    """
    reduce_scatter = Collective(Phase.BACKWARD, "reduce_scatter", num_params, num_params)
    if stage == 0:
        return (Collective(Phase.BACKWARD, "all_reduce", num_params, 2 * num_params),)
    if stage < 3:
        return reduce_scatter, Collective(Phase.STEP, "all_gather", num_params, num_params)
    gathers = (Collective(phase, "all_gather", num_params, num_params) for phase in (Phase.FORWARD, Phase.BACKWARD))
    return *gathers, reduce_scatter
