"""What a pipeline moves between its stages and how long it stands idle, in closed forms."""

from __future__ import annotations

from dataclasses import dataclass

from zerobench.formulas.activations import trial_shape
from zerobench.spec.batch import micro_batches_of_share
from zerobench.spec.strategy import strategy_info
from zerobench.spec.trial import TrialSpec

_TOKEN_BYTES = 8
_LOSS_BYTES = 4


@dataclass(frozen=True)
class Passed:
    """What a stage hands to others and gets from them in an optimizer step."""

    sent_bytes: int
    received_bytes: int


def passed_per_step(trial: TrialSpec, stage: int) -> Passed:
    """What stage `stage` (from 0) sends and receives in an optimizer step.

    The hidden states of each micro-batch cross each border between two stages once, and their gradients once the other
    way: b s h elements each (Narayanan et al., arXiv 2104.04473, section 3.2). Where the first stage drives the others
    it sends the last one the tokens, int64, and gets an fp32 loss for each micro-batch, whose gradient it sends back.
    """
    shape, micro_batches = trial_shape(trial), micro_batches_of_share(trial)
    borders = (stage > 0) + (stage < trial.world_size - 1)
    sent = received = borders * shape.tokens * shape.hidden_size * shape.element
    if strategy_info(trial.strategy).is_driven:
        from_driver, to_driver = shape.tokens * _TOKEN_BYTES + _LOSS_BYTES, _LOSS_BYTES
        is_driver, is_last = stage == 0, stage == trial.world_size - 1
        sent += is_driver * from_driver + is_last * to_driver
        received += is_driver * to_driver + is_last * from_driver
    return Passed(micro_batches * sent, micro_batches * received)


def pipeline_bytes_per_step(trial: TrialSpec, stage: int) -> int:
    """What stage `stage` (from 0) sends and receives in an optimizer step together, in bytes (`passed_per_step`)."""
    passed = passed_per_step(trial, stage)
    return passed.sent_bytes + passed.received_bytes


def bubble_fraction(trial: TrialSpec) -> float:
    """Part of a step in which a rank is idle if every stage takes equally long: (p - 1) / (m + p - 1).

    Of both schedules: Huang et al. (arXiv 1811.06965, section 2.3) write it so; Narayanan et al. (section 2.2.1) write
    idle over useful time, (p - 1) / m, which is the same.
    """
    stages, micro_batches = trial.world_size, micro_batches_of_share(trial)
    return (stages - 1) / (micro_batches + stages - 1)
