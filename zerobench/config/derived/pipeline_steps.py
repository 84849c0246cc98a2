"""Traffic and idle time of the stages of a pipeline in one step, from the papers."""

from __future__ import annotations

from dataclasses import dataclass

from zerobench.common.errors import UserError
from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.derived.host_memory import element_bytes
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.trial import TrialSpec

_TOKEN_BYTES = 8
_LOSS_BYTES = 4


@dataclass(frozen=True)
class StageTraffic:
    """Bytes that a stage sends and receives in an optimizer step."""

    sent_bytes: int
    received_bytes: int


def passed_per_step(trial: TrialSpec, stage: int) -> StageTraffic:
    """Return the traffic of stage `stage` (from 0) in an optimizer step.

    The hidden states of each micro-batch cross each border between two stages once, and their gradients once the other
    way: b s h elements each (Narayanan et al., arXiv 2104.04473, section 3.2). Where the first stage drives the others
    it sends the last one the tokens, int64, and gets an fp32 loss for each micro-batch, whose gradient it sends back.
    Raises UserError: the model's config has no hidden size.
    """
    hidden = dimensions(trial.model).hidden_size
    if not hidden:
        raise UserError(f"model: {trial.model.name!r} has no hidden_size in its config")
    tokens, micro_batches = trial.sequence_length * trial.micro_batch_size, micro_batches_of_share(trial)
    borders = (stage > 0) + (stage < trial.world_size - 1)
    sent = received = borders * tokens * hidden * element_bytes(trial)
    if strategy_info(trial.strategy).is_driven:
        from_driver, to_driver = tokens * _TOKEN_BYTES + _LOSS_BYTES, _LOSS_BYTES
        is_driver, is_last = stage == 0, stage == trial.world_size - 1
        sent += is_driver * from_driver + is_last * to_driver
        received += is_driver * to_driver + is_last * from_driver
    return StageTraffic(micro_batches * sent, micro_batches * received)


def pipeline_bytes_per_step(trial: TrialSpec, stage: int) -> int:
    """Return the bytes that stage `stage` (from 0) sends and receives together. Raises as `passed_per_step` does."""
    passed = passed_per_step(trial, stage)
    return passed.sent_bytes + passed.received_bytes


def bubble_fraction(trial: TrialSpec) -> float:
    """Return the part of a step in which a rank is idle if every stage takes equally long: (p - 1) / (m + p - 1).

    Of both schedules: Huang et al. (arXiv 1811.06965, section 2.3) write it so; Narayanan et al. (section 2.2.1) write
    idle over useful time, (p - 1) / m, which is the same.
    """
    stages, micro_batches = trial.world_size, micro_batches_of_share(trial)
    return (stages - 1) / (micro_batches + stages - 1)
