"""Bytes that leave and enter a rank in a step: as counted, and by the papers' closed forms.

Counted are messages of collectives, sends and receives in the last memory step. What a collective's message makes leave
a rank is a ring's or a tree's least (estimate/clock/links.py): 2 (n-1)/n of it for an all-reduce, (n-1)/n for the
others. The closed forms go through the same function, so that both mean the same:

- ddp and ZeRO: Psi elements all-reduced at stages 0 to 2 or reduced and gathered, three times Psi moved at stage 3
  (Rajbhandari et al., arXiv 1910.02054, section 7); halved by 16-bit hooks; one bit an element gathered from all by
  the 1-bit hook (rank/strategies/compression.py);
- parameter server: weights pulled and gradients pushed (Li et al., OSDI 2014), by the server for each of its workers;
- pipeline: the hidden states of each micro-batch one way and their gradients the other (Narayanan et al., arXiv
  2104.04473, section 3.2; config/derived/pipeline_steps.py), and under a driver tokens and losses between the first
  and the last;
- tensor: Megatron-LM's all-reduces of activations (arXiv 1909.08053, section 3; config/derived/megatron.py).
"""

from collections.abc import Iterable

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.derived import zero_paper
from zerobench.config.derived.batch import AUTOTP_SIZE
from zerobench.config.derived.megatron import tensor_moves
from zerobench.config.derived.parameter_server import bytes_per_step
from zerobench.config.derived.pipeline_steps import passed_per_step
from zerobench.config.derived.roles import Role, num_servers, num_workers
from zerobench.config.derived.strategy import STRATEGIES, paper_stage
from zerobench.config.trial.trial import Compression, TrialSpec
from zerobench.estimate.clock.collectives import bytes_per_element
from zerobench.estimate.clock.links import Flow, flow, total_flow
from zerobench.records.records import CollectiveTraffic, RankRecord

_HALF = (Compression.FP16, Compression.BF16)


def counted(rank: RankRecord) -> Flow | None:
    """Bytes that left and entered `rank` in the steady step; None where nobody counted, or a kind is not known."""
    rows = [row for row in rank.collectives if row.step is StepKind.STEADY]
    if rank.world_size > 1 and not rows:
        return None
    return _total(rows)


def by_closed_form(trial: TrialSpec, rank: RankRecord) -> Flow | None:
    """Bytes that leave and enter `rank` in a step, by the papers; None where no closed form is written."""
    if trial.world_size == 1:
        return Flow()
    # ZeRO++ and MiCS move other bytes, in other groups, than the stage alone.
    groups = trial.hpz_partition_size, trial.mics_shard_size, trial.quantized_weights, trial.quantized_gradients
    if rank.parameters is None or AUTOTP_SIZE in trial.ds_config or any(groups) or not trial.trains_all:
        return None
    if num_servers(trial):
        return _server_flow(trial, rank)
    if trial.strategy == "tensor":
        return _tensor_flow(trial)
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    if info is not None and info.divides_layers:
        passed = passed_per_step(trial, rank.rank)
        return Flow(passed.received_bytes, passed.sent_bytes)
    stage = paper_stage(trial)
    return None if stage is None else _paper_flow(trial, rank.parameters.trainable, stage)


def _server_flow(trial: TrialSpec, rank: RankRecord) -> Flow | None:
    weights = 0 if rank.parameters is None else rank.parameters.trainable * bytes_per_element(trial.precision)
    both = bytes_per_step(weights, num_workers(trial), Role(rank.role))
    return Flow(both / 2, both / 2)


def _tensor_flow(trial: TrialSpec) -> Flow | None:
    ranks, element = trial.world_size, bytes_per_element(trial.precision)
    try:
        moves = tensor_moves(trial)
    except UserError:
        return None
    return total_flow(flow(move.kind, ranks, element * move.elements) for move in moves)


def _paper_flow(trial: TrialSpec, num_params: int, stage: int) -> Flow | None:
    """Each pass of the paper's, which stage 2 and 3 have in every backward pass (estimate/memory/zero_moves.py)."""
    ranks, element = trial.world_size, bytes_per_element(trial.precision)
    if trial.compression is Compression.ONEBIT:
        return flow("all_gather", ranks, ranks * num_params / 8)
    if trial.compression is Compression.POWERSGD:
        return None
    element = 2 if trial.compression in _HALF else element
    total = Flow()
    for collective in zero_paper.collectives(num_params, stage):
        times = 1 if stage < 2 or collective.phase is Phase.STEP else trial.gradient_accumulation_steps
        moved = flow(collective.kind, ranks, times * element * collective.elements)
        total += moved or Flow()
    return total


def _total(rows: Iterable[CollectiveTraffic]) -> Flow | None:
    return total_flow(flow(row.kind, row.group_size, row.message_bytes) for row in rows)
