"""Collectives and operations are counted where they happen, and nowhere else."""

from zerobench.common.vocabulary import Phase, StepKind
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
