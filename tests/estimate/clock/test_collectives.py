"""Bytes that collectives move, in the ZeRO paper's unit."""

import pytest

from tests.report.predicted_trial import asked, collective, trial
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.trial.trial import Precision
from zerobench.estimate.clock.collectives import KindTraffic, traffic_by_kind, volume_psi

PSI = 1_000_000
BF16 = 2 * PSI


def kinds(*traffic: tuple[str, Phase, int]) -> list[KindTraffic]:
    rank = trial(asked(), collectives=[collective(*one) for one in traffic], num_params=PSI).ranks[0]
    return traffic_by_kind(rank, Precision.BF16)


@pytest.mark.parametrize(
    ("traffic", "expected"),
    [
        ([("all_reduce", Phase.BACKWARD, BF16)], 2),
        ([("reduce_scatter", Phase.BACKWARD, BF16), ("all_gather", Phase.STEP, BF16)], 2),
        (
            [
                ("all_gather", Phase.FORWARD, BF16),
                ("all_gather", Phase.BACKWARD, BF16),
                ("reduce_scatter", Phase.BACKWARD, BF16),
            ],
            3,
        ),
    ],
)
def test_the_papers_volumes_come_out_in_psi(traffic: list[tuple[str, Phase, int]], expected: int) -> None:
    """ZeRO, section 7: 2 Psi at stages 0 to 2, 3 Psi at stage 3."""
    assert volume_psi(kinds(*traffic)) == expected


def test_phases_and_calls_of_a_kind_add_up_and_the_largest_comes_first() -> None:
    one, other = kinds(
        ("reduce_scatter", Phase.BACKWARD, BF16),
        ("all_gather", Phase.FORWARD, BF16),
        ("all_gather", Phase.BACKWARD, BF16),
    )
    assert one == KindTraffic("all_gather", 8, 2, 2 * BF16, 2.0)
    assert (other.kind, other.message_bytes) == ("reduce_scatter", BF16)


def test_groups_of_another_size_and_the_first_step_are_kept_apart() -> None:
    found = [
        collective("all_gather", Phase.FORWARD, 100),
        collective("all_gather", Phase.FORWARD, 50, group_size=2),
        collective("broadcast", Phase.INIT, 999, step=StepKind.FIRST),
    ]
    rank = trial(asked(), collectives=found).ranks[0]
    assert [(one.group_size, one.message_bytes) for one in traffic_by_kind(rank, Precision.BF16)] == [(8, 100), (2, 50)]
    assert [one.kind for one in traffic_by_kind(rank, Precision.BF16, StepKind.FIRST)] == ["broadcast"]


def test_without_a_count_of_parameters_there_is_no_psi() -> None:
    rank = trial(asked(), collectives=[collective("all_gather", Phase.FORWARD, 100)]).ranks[0]
    [one] = traffic_by_kind(rank.model_copy(update={"parameters": None}), Precision.BF16)
    assert one.volume_psi is None
    assert volume_psi([one]) is None
