"""A predicted trial with larger micro-batches, from what it left: nothing is run anew, and memory is not told."""

from __future__ import annotations

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.estimate.clock.trace import unpack
from zerobench.records.records import RankRecord
from zerobench.records.trials import PlainTrial, Trial


def of_more_tokens(trial: Trial, times: int) -> Trial:
    """`trial` with micro-batches `times` as large: FLOPs of the passes and the kernels of its trace grow with them, the
    update and the parameters that are communicated stay. Where ranks divide the model they send each other tokens.

    Raises UserError where a trace is none, or a script does not say what its micro-batches are.
    """
    spec = trial.spec
    if spec.own is not None:
        raise UserError("a user script's step is known as it was played: its products say no number of tokens")
    info = STRATEGIES.get(spec.strategy)
    sends_tokens = info is not None and not info.divides_batch
    tokens = spec.micro_batch_size * spec.sequence_length
    ranks = tuple(_rank(rank, tokens, times, sends_tokens=sends_tokens) for rank in trial.ranks)
    larger = spec.model_copy(update={"micro_batch_size": times * spec.micro_batch_size})
    return PlainTrial(larger, trial.record, ranks)


def _rank(rank: RankRecord, tokens: int, times: int, *, sends_tokens: bool) -> RankRecord:
    trace = rank.step_trace
    if trace is not None:
        try:
            trace = unpack(trace).of_more_tokens(tokens, times, messages=sends_tokens).pack()
        except ValueError as error:
            raise UserError(f"step_trace of rank {rank.rank} of {rank.trial_id}: {error}") from error
    grown: dict[str, object] = {
        "flops": [
            row if row.phase is Phase.STEP else row.model_copy(update={"flops": times * row.flops})
            for row in rank.flops
        ],
        "flops_per_step": None if rank.flops_per_step is None else times * rank.flops_per_step,
        "step_trace": trace,
    }
    if sends_tokens:
        grown["collectives"] = [
            row if row.phase is Phase.STEP else row.model_copy(update={"message_bytes": times * row.message_bytes})
            for row in rank.collectives
        ]
    return rank.model_copy(update=grown)
