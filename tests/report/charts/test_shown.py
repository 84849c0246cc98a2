"""Which trials and which lines a chart shows where there are more than a person reads."""

import pytest

from tests.report.sample_run import model, skipped_trial, spec
from zerobench.report.charts.series import MOST_LINES, Place, assign_series, left_out_sentence
from zerobench.report.charts.shown import axis_top, most_telling
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.trial import TrialFigures


def trial(strategy: str, batch: int = 1, ranks: int = 1, name: str = "m") -> TrialFigures:
    """A trial of which only what was asked matters."""
    asked = spec(strategy, micro_batch_size=batch, gpus_per_node=ranks, model=model(name, 2, 64))
    return trial_figures(skipped_trial(asked, "a_rule"))


def size(one: TrialFigures) -> float:
    """A larger batch takes more."""
    return float(one.spec.micro_batch_size)


def test_the_largest_of_each_strategy_come_first_and_stand_in_the_order_of_the_sweep() -> None:
    trials = [trial(strategy, batch) for strategy in ("zero1", "zero2") for batch in (1, 2, 3)]
    chosen = [(one.spec.strategy, one.spec.micro_batch_size) for one in most_telling(trials, size, 3)]
    assert chosen == [("zero1", 2), ("zero1", 3), ("zero2", 3)]
    assert most_telling(trials, size, 6) == trials


def test_of_trials_that_are_equal_in_all_that_is_drawn_one_is_enough() -> None:
    trials = [*(trial("zero1", 4, name=str(index)) for index in range(5)), trial("zero2", 1)]
    chosen = most_telling(trials, size, 3)
    assert chosen == [trials[0], trials[5]]


def test_of_too_many_lines_those_are_drawn_that_differ_in_strategy_alone() -> None:
    stages = [trial(f"zero{stage}", ranks=ranks) for stage in range(4) for ranks in (1, 2)]
    others = [trial("zero1", 2, ranks, f"model-{index}") for index in range(MOST_LINES) for ranks in (1, 2)]
    places = [Place(one, one.spec.world_size, 1.0) for one in [*others, *stages]]
    found, number = assign_series(places, ("num_nodes", "world_size"))
    assert number == 4 + MOST_LINES
    assert len(found) == MOST_LINES
    assert {place.trial.spec.strategy for line in found for place in line.places} == {
        f"zero{stage}" for stage in range(4)
    }
    assert "16 of 20 lines" in left_out_sentence(found, number)
    apart = [Place(one, one.spec.world_size, 1.0) for one in (trial("zero1", 8, ranks, "x") for ranks in (1, 2))]
    assert len(assign_series([*places[-8:], *apart], ("num_nodes", "world_size"))[0]) == 5


def test_a_frame_is_added_only_where_all_of_it_has_room() -> None:
    places = [
        Place(one, one.spec.world_size, 1.0)
        for name, stages in (("a", 4), ("b", 3))
        for batch in range(1, 4)
        for stage in range(stages)
        for one in (trial(f"zero{stage}", batch, ranks, name) for ranks in (1, 2))
    ]
    found, number = assign_series(places, ("num_nodes", "world_size"))
    assert (number, len(found)) == (21, 15)


@pytest.mark.parametrize(
    ("tops", "ends"),
    [
        ([10.0, 20.0, 30.0], [(30.0, False)] * 3),
        ([10.0, 20.0, 61.0], [(20.0, False), (20.0, False), (61.0, True)]),
        ([10.0, 61.0], [(61.0, False)] * 2),
        ([61.0], [(61.0, False)]),
    ],
)
def test_the_largest_panel_has_an_axis_of_its_own_where_it_would_flatten_the_others(
    tops: list[float], ends: list[tuple[float, bool]]
) -> None:
    assert [axis_top(top, tops) for top in tops] == ends
