"""What a pipeline moves between its stages and how long it stands idle, in closed forms."""

from __future__ import annotations

from zerobench.formulas.activations import trial_shape
from zerobench.spec.batch import micro_batches_of_share
from zerobench.spec.strategy import strategy_info
from zerobench.spec.trial import TrialSpec

_TOKEN_BYTES = 8
_LOSS_BYTES = 4


def pipeline_bytes_per_step(trial: TrialSpec, stage: int) -> int:
    """What stage `stage` (from 0) sends and receives in an optimizer step, in bytes.

    The hidden states of each micro-batch cross each border between two stages once, and their gradients once the other
    way: b s h elements each (Narayanan et al., arXiv 2104.04473, section 3.2). Where the first stage drives the others
    it sends the last one the tokens, int64, and gets an fp32 loss for each micro-batch, whose gradient it sends back.
    """
    shape = trial_shape(trial)
    hidden_bytes = shape.tokens * shape.hidden_size * shape.element
    borders = (stage > 0) + (stage < trial.world_size - 1)
    driven = strategy_info(trial.strategy).is_driven and stage in {0, trial.world_size - 1}
    beside = shape.tokens * _TOKEN_BYTES + 2 * _LOSS_BYTES if driven else 0
    return micro_batches_of_share(trial) * (2 * borders * hidden_bytes + beside)


def bubble_fraction(trial: TrialSpec) -> float:
    """Part of a step in which a rank is idle if every stage takes equally long: (p - 1) / (m + p - 1).

    Of both schedules: Huang et al. (arXiv 1811.06965, section 2.3) write it so; Narayanan et al. (section 2.2.1) write
    idle over useful time, (p - 1) / m, which is the same.
    """
    stages, micro_batches = trial.world_size, micro_batches_of_share(trial)
    return (stages - 1) / (micro_batches + stages - 1)
