"""Bytes that real ranks communicate, and the total and exposed times of communication."""

from typing import Any

import pytest

from tests.rank.real_ranks import RunTrial
from tests.rank.strategies.test_parameter_server import single, spec
from tests.tools.at_least_one import at_least_one
from zerobench.common.vocabulary import StepKind
from zerobench.config.derived.roles import Role
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.clock.replay import merged
from zerobench.rank.training.communication import Event, summary
from zerobench.records.records import RankRecord

MS = 1e6
"""Nanoseconds of a millisecond."""
WATCHED: dict[str, Any] = {"steps": {"warmup": 1, "timed": 1, "memory": 1, "communication": 2}}


def on_two(strategy: str, **fields: Any) -> TrialSpec:
    return spec(strategy=strategy, gpus_per_node=2, gradient_accumulation_steps=3, **WATCHED, **fields)


def event(name: str, start_ms: float, end_ms: float, *, on_device: bool = False) -> Event:
    return Event(name, start_ms * MS, end_ms * MS, on_device)


def traffic(rank: RankRecord) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Calls and bytes of the steady step, by phase, kind and ranks of the group."""
    rows = [row for row in rank.collectives if row.step is StepKind.STEADY]
    return {(row.phase, row.kind, row.group_size): (row.calls, row.message_bytes) for row in rows}


def test_what_overlaps_computing_is_in_flight_and_not_exposed():
    seen = summary(
        [
            event("gloo:all_reduce", 2, 8),
            event("gloo:all_reduce", 6, 10),
            event("aten::mm", 0, 5),
            event("autograd::engine::evaluate_function", 0, 20),  # holds what waits too, so it says nothing
            event("aten::add_", 9, 12),
        ],
        step_s=0.02,
    )
    assert (seen.calls, seen.step_s) == (2, 0.02)
    assert seen.in_flight_s == pytest.approx(0.008)  # 2 to 10
    assert seen.exposed_s == pytest.approx(0.004)  # 5 to 9


def test_on_a_gpu_its_kernels_count_and_not_what_the_host_does_at_that_time():
    seen = summary(
        [
            event("aten::mm", 0, 100),
            event("nccl:all_reduce", 0, 50),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 40, on_device=True),
            event("ampere_sgemm_128x64_tn", 0, 30, on_device=True),
        ],
        step_s=0.1,
    )
    assert seen.calls == 1
    assert seen.in_flight_s == pytest.approx(0.02)
    assert seen.exposed_s == pytest.approx(0.01)


def test_spans_that_touch_are_one():
    assert merged([(5, 6), (0, 2), (2, 3), (1, 2)]) == [(0, 3), (5, 6)]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tensor"])
def test_real_ranks_are_heard_to_move_what_a_rank_alone_hands_to_its_collectives(ran: RunTrial, strategy: str):
    real, other = ran(on_two(strategy))
    [alone] = ran(on_two(strategy, evidence="solo"))
    assert traffic(real)
    assert traffic(real) == traffic(alone) == traffic(other)


def test_ddp_reduces_every_gradient_once_a_step_whatever_it_accumulates(ran: RunTrial):
    for rank in at_least_one(ran(on_two("ddp"))):
        assert rank.parameters is not None
        (_, kind, _), (_, nbytes) = next(iter(traffic(rank).items()))
        assert (kind, nbytes) == ("all_reduce", 4 * rank.parameters.trainable)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tensor"])
def test_each_watched_step_says_how_long_it_communicated_and_did_nothing_else(ran: RunTrial, strategy: str):
    for rank in at_least_one(ran(on_two(strategy))):
        assert len(rank.communication) == 2
        for step in rank.communication:
            assert step.calls > 0
            assert 0 < step.exposed_s <= step.in_flight_s < step.step_s
        assert len(rank.step_times) == 1  # watched steps are not timed ones
        assert len(rank.losses) == 7


def test_a_server_that_waits_for_workers_is_seen_to_do_nothing_most_of_the_time(ran: RunTrial):
    server = next(rank for rank in ran(spec(**WATCHED)) if rank.role == Role.SERVER)
    # Of two steps on two cores that others want too, one may be lengthened where the server does work.
    assert max(step.exposed_s / step.step_s for step in server.communication) > 1 / 2


def test_one_process_is_watched_and_seen_to_communicate_nothing(ran: RunTrial):
    [alone] = ran(single(**WATCHED))
    assert [(step.calls, step.in_flight_s) for step in alone.communication] == [(0, 0.0)] * 2


def test_a_rank_that_is_alone_among_many_is_not_watched(ran: RunTrial):
    [alone] = ran(on_two("ddp", evidence="solo"))
    assert alone.communication == []
