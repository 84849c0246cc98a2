"""Collectives and operations are counted where they happen, and nowhere else."""

from tests.tools.known import known
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.estimate.clock.trace import Call, CollectiveWait, Item, PhaseStart, unpack
from zerobench.rank.ledger.traffic import Traffic


def heard(traffic: Traffic) -> list[tuple[StepKind, Phase, str, int, int | None, int, int]]:
    return [
        (c.step, c.phase, c.kind, c.group_size, c.num_nodes, c.calls, c.message_bytes) for c in traffic.collectives()
    ]


def test_calls_of_one_kind_and_group_add_up_and_others_stay_apart():
    traffic = Traffic()
    assert traffic.trace() is None  # nobody takes its order down
    with traffic.counted(StepKind.STEADY, Phase.BACKWARD):
        traffic.collective("all_reduce", 2, 100)
        traffic.collective("all_reduce", 2, 50)
        traffic.collective("all_reduce", 4, 7)
        traffic.collective("all_reduce", 4, 9, num_nodes=2)
        traffic.collective("broadcast", 2, 3)
    where = (StepKind.STEADY, Phase.BACKWARD)
    assert heard(traffic) == [
        (*where, "all_reduce", 2, None, 2, 150),
        (*where, "all_reduce", 4, None, 1, 7),
        (*where, "all_reduce", 4, 2, 1, 9),
        (*where, "broadcast", 2, None, 1, 3),
    ]


def test_a_group_of_one_moves_nothing():
    traffic = Traffic()
    with traffic.counted(StepKind.STEADY, Phase.BACKWARD):
        traffic.collective("all_reduce", 1, 100)
    assert traffic.collectives() == []


def test_what_happens_between_phases_is_not_counted():
    traffic = Traffic()
    traffic.add_flops(1)
    with traffic.counted(StepKind.FIRST, Phase.FORWARD):
        traffic.add_flops(2)
        traffic.add_flops(3)
    traffic.add_flops(4)
    traffic.collective("all_reduce", 2, 100)
    assert traffic.collectives() == []
    assert [(f.step, f.phase, f.flops) for f in traffic.flops()] == [(StepKind.FIRST, Phase.FORWARD, 5)]


def test_a_kind_of_step_is_forgotten_alone():
    traffic = Traffic()
    for kind in StepKind:
        with traffic.counted(kind, Phase.FORWARD):
            traffic.add_flops(2)
            traffic.collective("all_reduce", 2, 100)
    traffic.forget(StepKind.STEADY)
    assert [row.step for row in traffic.collectives()] == [StepKind.FIRST]
    assert [row.step for row in traffic.flops()] == [StepKind.FIRST]


def issued(traffic: Traffic) -> tuple[Item, ...]:
    return unpack(known(traffic.trace())).items


def test_the_order_is_that_of_the_last_steady_step_alone():
    traffic = Traffic()
    traffic.record_order(lambda: 3)
    for kind, nbytes in ((StepKind.FIRST, 10), (StepKind.STEADY, 20), (StepKind.STEADY, 30)):
        traffic.forget(kind)
        with traffic.counted(kind, Phase.BACKWARD):
            traffic.collective("all_reduce", 2, nbytes, num_nodes=1)
    assert issued(traffic) == (PhaseStart("backward"), Call(3, "all_reduce", 2, 1, 30))
    assert [(row.step, row.message_bytes) for row in traffic.collectives()] == [
        (StepKind.FIRST, 10), (StepKind.STEADY, 30)
    ]  # fmt: skip


def test_who_waits_for_a_collective_is_taken_down_on_the_stream_that_then_is_current():
    streams = iter([0, 7, 8, 9])
    traffic = Traffic()
    traffic.record_order(lambda: next(streams))
    with traffic.counted(StepKind.STEADY, Phase.FORWARD):
        first = known(traffic.collective("all_gather", 2, 100))
        second = known(traffic.collective("broadcast", 4, 5, num_nodes=2))
        second()
        first()
    assert issued(traffic) == (
        PhaseStart("forward"),
        Call(0, "all_gather", 2, None, 100),
        Call(7, "broadcast", 4, 2, 5),
        CollectiveWait(8, 1),
        CollectiveWait(9, 0),
    )


def test_nobody_waits_for_what_is_not_taken_down():
    traffic = Traffic()
    with traffic.counted(StepKind.STEADY, Phase.FORWARD):
        assert traffic.collective("all_gather", 2, 100) is None  # before the order is asked for
    traffic.record_order(lambda: 0)
    assert traffic.collective("all_gather", 2, 100) is None  # between phases
    with traffic.counted(StepKind.FIRST, Phase.FORWARD):
        assert traffic.collective("all_gather", 2, 100) is None
    with traffic.counted(StepKind.STEADY, Phase.FORWARD):
        assert traffic.collective("all_gather", 1, 100) is None
        awaited = known(traffic.collective("all_gather", 2, 100))
    awaited()  # after its phase: no part of the step
    assert issued(traffic) == (PhaseStart("forward"), Call(0, "all_gather", 2, None, 100))
    assert traffic.trace() == traffic.trace()  # asking for it changes nothing
