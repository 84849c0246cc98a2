"""The time of a pipeline's passes: what each stage computes, and the bubbles and transfers of its schedule.

The blocks are divided as the worker divides them (rank/strategies/stages.py). All stages go by the same closed form;
where one left a trace, its replay says by how much the closed form of its blocks is off, and so much it is taken to be
off in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.derived.pipeline import stage_blocks
from zerobench.config.models.tensors import stage_tensors
from zerobench.config.trial.trial import PipelineSchedule, TrialSpec
from zerobench.estimate.clock.kernels import WORD_BYTES
from zerobench.estimate.clock.latency import latency_s
from zerobench.estimate.clock.rates import Rates
from zerobench.estimate.clock.replay import Timeline
from zerobench.estimate.time.passes import Decoder, Passes
from zerobench.estimate.time.pipeline import StageTimes, passes_s
from zerobench.estimate.time.terms import Work


class PipelinePasses(NamedTuple):
    """Seconds of the passes."""

    compute_s: float
    """Of the slowest stage."""
    exposed_s: float
    """That transfers between stages add."""
    bubble_s: float
    """In which the slowest stage waits for others although all is passed on at once."""
    update_times: float
    """The largest stage's parameters over the recorded stage's: so much longer it updates."""


def piped(
    work: Work, computing: Callable[[range], Passes], decoder: Decoder, rates: Rates, replayed: Timeline | None
) -> PipelinePasses | None:
    """The passes of the pipeline of `work`: `computing` has those of some blocks, and `replayed` is the replay of its
    recorded stage, if it has one.

    None where the rate of a link is not known.
    """
    spec = work.spec
    micro_batches, recorded = micro_batches_of_share(spec), work.rank.rank
    division, sizes = divided(spec)
    borders = [_border_s(work, decoder, index) for index in range(spec.world_size - 1)]
    transfers = [border for border in borders if border is not None]
    if len(transfers) < len(borders):
        return None
    slower = rates.slower(spec.world_size)
    computed = [computing(blocks) for blocks in division]
    parts = [_stage(each, len(blocks), slower) for each, blocks in zip(computed, division, strict=True)]
    heads = [(0.0, 0.0)] * (len(parts) - 1) + [_head(computed[-1], slower)]
    longer = 1.0
    if replayed is not None:
        longer = (replayed.total_s("compute") / micro_batches - sum(heads[recorded])) / sum(parts[recorded])
    times = [
        (longer * forward + first, longer * backward + second)
        for (forward, backward), (first, second) in zip(parts, heads, strict=True)
    ]
    compute = micro_batches * max(map(sum, times))

    def passed(borders: Sequence[float]) -> float:
        stages = [StageTimes(*time, border) for time, border in zip(times, [*borders, 0.0], strict=True)]
        forward_first = spec.pipeline_schedule is PipelineSchedule.GPIPE
        return passes_s(stages, micro_batches, forward_first=forward_first)

    still = passed([0.0] * len(transfers))
    return PipelinePasses(compute, passed(transfers) - still, still - compute, max(sizes) / sizes[recorded])


def divided(spec: TrialSpec) -> tuple[list[range], list[int]]:
    """Which blocks each stage has, and how many parameters."""
    division = stage_blocks(spec.model, spec.world_size)
    return division, [sum(stage_tensors(spec.model, blocks)) for blocks in division]


def _stage(computing: Passes, blocks: int, slower: float) -> tuple[float, float]:
    """Seconds of one micro-batch's blocks forward and backward."""
    return slower * blocks * computing.block_forward_s, slower * blocks * computing.block_backward_s


def _head(computing: Passes, slower: float) -> tuple[float, float]:
    """The same of the last stage's head."""
    early = computing.head_forward_share * computing.head_s
    return slower * early, slower * (computing.head_s - early)


def _border_s(work: Work, decoder: Decoder, stage: int) -> float | None:
    """In which hidden states pass from a stage to the next, over the network where that lies on another node."""
    spec = work.spec
    crosses = (stage + 1) % spec.gpus_per_node == 0
    rate = work.links.network_gb_per_s if crosses else work.links.link_gb_per_s
    nbytes = spec.micro_batch_size * spec.sequence_length * decoder.hidden * WORD_BYTES
    return None if rate is None else nbytes / (rate * 1e9) + latency_s("send", 2, 1 + crosses)
