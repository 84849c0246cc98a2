"""Division of a model's blocks among the stages of a pipeline."""

from collections.abc import Sequence
from itertools import accumulate

from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.models.architecture import dimensions
from zerobench.config.models.tensors import block_tensors, stage_tensors
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import PipelineSchedule, TrialSpec

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox")
"""Models with one row of blocks between an embedding, a last norm and a head."""


def divide_blocks(blocks: Sequence[int], first: int, last: int, num_stages: int) -> list[range]:
    """Divide blocks among stages: contiguous, at least one each, as even in size as possible.

    `blocks`: parameters of each block; `first`: those that the first stage has besides its blocks (embeddings), `last`:
    those of the last stage (final norm and head). Even means the least sum of squares: with identical blocks this also
    minimizes the largest stage, DeepSpeed's `partition_method: parameters` (deepspeed/runtime/utils.py,
    partition_balanced). Ties go to more blocks in earlier stages. Raises ValueError for fewer blocks than stages.
    """
    if not 1 <= num_stages <= len(blocks):
        raise ValueError(f"{len(blocks)} blocks cannot be divided among {num_stages} stages")
    extras = [0] * num_stages
    extras[0] += first
    extras[-1] += last
    ends = _ends([0, *accumulate(blocks)], extras)
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _ends(sums: Sequence[int], beside: Sequence[int]) -> list[int]:
    """End of each stage, by dynamic programming over the number of blocks in the stages so far."""
    num_blocks, num_stages = len(sums) - 1, len(beside)
    cost: dict[int, int] = {0: 0}
    began: list[dict[int, int]] = []
    for stage in range(num_stages):
        reached: dict[int, tuple[int, int]] = {}
        for end in range(stage + 1, num_blocks - (num_stages - stage - 1) + 1):
            choices = ((cost[b] + (sums[end] - sums[b] + beside[stage]) ** 2, -b) for b in cost if b < end)
            reached[end] = min(choices)
        began.append({end: -begin for end, (_, begin) in reached.items()})
        cost = {end: squares for end, (squares, _) in reached.items()}
    ends = [num_blocks]
    for stage in range(num_stages - 1, 0, -1):
        ends.append(began[stage][ends[-1]])
    return ends[::-1]


def stage_blocks(model: ModelSpec, num_stages: int) -> list[range]:
    """Divide the blocks of `model` among stages as a rank does (rank/strategies/stages.py).

    Raises UserError for an architecture without a closed form, ValueError for fewer blocks than stages.
    """
    layer, num_blocks = block_tensors(model)
    block = sum(layer)
    first = sum(stage_tensors(model, range(num_blocks - 1))) - (num_blocks - 1) * block
    last = sum(stage_tensors(model, range(1, num_blocks))) - (num_blocks - 1) * block
    return divide_blocks([block] * num_blocks, first, last, num_stages)


def own_blocks(trial: TrialSpec) -> range:
    """Blocks that the predicted rank of `trial` runs: its stage's, or all. Raises as `stage_blocks` does."""
    if strategy_info(trial.strategy).divides_layers:
        return stage_blocks(trial.model, trial.world_size)[trial.prediction.rank]
    return range(block_tensors(trial.model)[1])


def is_last_stage(trial: TrialSpec) -> bool:
    """Return whether the predicted rank of a pipeline is the last, with the final norm and the head."""
    return trial.prediction.rank == trial.world_size - 1


def pipeline_refusal(trial: TrialSpec, num_stages: int) -> str | None:
    """Reason why the trial's model cannot be divided into `num_stages` stages; None if it can."""
    if trial.model.model_type not in MODEL_TYPES:
        return f"a model of type {trial.model.model_type}: its blocks are unknown; use one of {', '.join(MODEL_TYPES)}"
    num_blocks = dimensions(trial.model).num_layers
    if num_blocks is not None and num_blocks < num_stages:
        return f"its {num_blocks} blocks cannot be divided among {num_stages} stages, which need one each"
    return None


def micro_batches_in_flight(trial: TrialSpec, stage: int) -> int:
    """Most micro-batches whose activations stage `stage` (from 0) keeps at once.

    All of the step's under GPipe (Huang et al., arXiv 1811.06965, section 2.3); under 1F1B as many as there are stages
    from this one on (Narayanan et al., arXiv 2104.04473, section 2.2.1).
    """
    micro_batches = micro_batches_of_share(trial)
    if trial.pipeline_schedule is PipelineSchedule.GPIPE:
        return micro_batches
    return min(micro_batches, trial.world_size - stage)
