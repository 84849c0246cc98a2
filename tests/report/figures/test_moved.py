"""Bytes by the papers' closed forms, against numbers written out by hand."""

import pytest

from tests.report.figures.strategies.figures import WEIGHTS, P, spec
from tests.report.predicted_trial import collective
from tests.report.sample_run import completed_trial
from tests.report.sample_run import spec as sample_spec
from tests.tools.known import known
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.records import ParameterTensor, RankRecord
from zerobench.report.figures.moved import by_closed_form, counted

RANK = completed_trial(sample_spec("zero0", gpus_per_node=2)).ranks[0]


def rank(asked: TrialSpec, role: str = "worker", **fields: object) -> RankRecord:
    parameters = ParameterTensor(total=P, trainable=P, by_component={})
    return RANK.model_copy(
        update={"world_size": asked.world_size, "role": role, "parameters": parameters, "collectives": [], **fields}
    )


def sent(asked: TrialSpec, role: str = "worker") -> float | None:
    moved = by_closed_form(asked, rank(asked, role))
    return None if moved is None else moved.out_bytes


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        (spec("single", 1), 0),
        (spec("ddp", 1), 0),
        (spec("ddp", 4), 2 * 3 / 4),
        (spec("zero0", 4), 2 * 3 / 4),
        (spec("zero1", 4), 2 * 3 / 4),
        (spec("zero2", 4), 2 * 3 / 4),
        (spec("zero3", 4), 3 * 3 / 4),
        (spec("fsdp", 4), 3 * 3 / 4),
        (spec("zero3", 4, gradient_accumulation_steps=2), 2 * 3 * 3 / 4),  # every micro-batch gathers and reduces
        (spec("ddp", 4, gradient_accumulation_steps=2), 2 * 3 / 4),  # the last one alone reduces
        (spec("ddp", 4, compression="fp16"), 3 / 4),
        (spec("ddp", 4, compression="onebit"), 3 / 32),
        (spec("parameter-server", 4), 1),
    ],
    ids=lambda value: f"{value.strategy} {value.compression}" if isinstance(value, TrialSpec) else None,
)
def test_a_rank_sends_so_many_times_the_weights(asked: TrialSpec, times: float):
    assert sent(asked) == pytest.approx(times * WEIGHTS)


def test_a_server_sends_the_weights_to_each_worker_and_gets_as_much():
    asked = spec("parameter-server", 4)
    moved = known(by_closed_form(asked, rank(asked, "server")))
    assert (moved.out_bytes, moved.in_bytes) == (3 * WEIGHTS, 3 * WEIGHTS)


def test_a_stage_sends_hidden_states_on_and_their_gradients_back():
    asked = spec("pipeline", 3, batch=6, gradient_accumulation_steps=2)
    hidden = 2 * 100 * 128 * 4  # micro batch x tokens x width in fp32
    flows = [by_closed_form(asked, rank(asked).model_copy(update={"rank": stage})) for stage in range(3)]
    assert [flow and (flow.out_bytes, flow.in_bytes) for flow in flows] == [
        (6 * hidden, 6 * hidden),  # six micro-batches, one border
        (12 * hidden, 12 * hidden),
        (6 * hidden, 6 * hidden),
    ]


def test_a_driver_sends_tokens_and_the_gradients_of_losses_and_gets_losses_from_the_last_stage():
    asked = spec("rpc-pipeline", 3, batch=6, gradient_accumulation_steps=2)
    hidden, tokens, loss = 2 * 100 * 128 * 4, 2 * 100 * 8, 4
    flows = [by_closed_form(asked, rank(asked).model_copy(update={"rank": stage})) for stage in range(3)]
    assert [flow and (flow.out_bytes, flow.in_bytes) for flow in flows] == [
        (6 * (hidden + tokens + loss), 6 * (hidden + loss)),
        (12 * hidden, 12 * hidden),
        (6 * (hidden + loss), 6 * (hidden + tokens + loss)),
    ]


def test_where_no_closed_form_is_written_there_is_none():
    assert sent(spec("ddp", 4, compression="powersgd")) is None
    assert sent(spec("zero1", 2, ds_config={"tensor_parallel.autotp_size": 2})) is None
    assert sent(spec("zero3", 4, hpz_partition_size=2)) is None
    assert sent(spec("tensor", 2)) is None  # of a GPT-2, which cannot be cut


def test_what_was_counted_goes_through_the_ring_and_an_empty_count_of_several_ranks_is_no_zero():
    asked = spec("ddp", 4)
    row = collective("all_reduce", Phase.BACKWARD, WEIGHTS, 4)
    first = row.model_copy(update={"step": StepKind.FIRST})
    moved = known(counted(rank(asked, collectives=[row, first])))
    assert (moved.out_bytes, moved.in_bytes) == (1.5 * WEIGHTS, 1.5 * WEIGHTS)
    assert counted(rank(asked)) is None
    alone = known(counted(rank(spec("single", 1))))
    assert alone.out_bytes == 0
