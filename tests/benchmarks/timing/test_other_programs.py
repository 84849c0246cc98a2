"""Steps that other programs published, on GPUs that nobody here had, beside what is expected of them."""

import statistics
from dataclasses import replace

import pytest

from benchmarks.timing.other_programs import (
    TABLE,
    Judged,
    computing,
    in_order,
    in_programs,
    judged,
    rows,
    surely_in_order,
    text,
)
from zerobench.config.trial.trial import Offload
from zerobench.estimate.clock.rates import shipped_rates

TODAY = ("vectorlm", "atorch", "torchtune", "KempnerForge", "Qwen")
"""Programs of 2023 and later: their attention is that which the rates are of."""


@pytest.fixture(scope="module")
def steps() -> list[Judged]:
    return judged(rows())


def on_device(steps: list[Judged]) -> list[Judged]:
    return [each for each in steps if each.row.spec.offload_optimizer is Offload.NONE]


def test_the_committed_table_is_that_of_the_committed_rows(steps: list[Judged]) -> None:
    assert TABLE.read_text(encoding="utf-8") == text(steps)


@pytest.mark.parametrize("is_alone", [True, False], ids=["one rank", "several"])
def test_computing_takes_as_much_longer_in_programs_as_these_rows_say(is_alone: bool) -> None:
    today, some = shipped_rates().today, [each for each in computing(rows()) if each.is_alone is is_alone]
    assert in_programs(some) == pytest.approx(today.alone if is_alone else today.among_ranks, abs=0.001)


def test_programs_of_one_rank_compute_about_as_fast_as_their_kernels_and_of_several_slower() -> None:
    """Of each program that published both: its several ranks take longer than its one, communication apart."""
    steps = list(computing(rows()))
    slower = {
        program: statistics.median(each.error(1.0) for each in steps if each.row.program == program and each.is_alone)
        - statistics.median(each.error(1.0) for each in steps if each.row.program == program and not each.is_alone)
        for program in ("vectorlm", "KempnerForge", "fms-acceleration")
    }
    assert all(0.04 < share < 0.11 for share in slower.values()), slower


def test_a_program_has_no_part_in_what_its_own_steps_are_judged_by(steps: list[Judged]) -> None:
    of_one = [each.row for each in steps if each.row.program == "KempnerForge"]
    others = [each.row for each in steps if each.row.program != "KempnerForge"]
    slower = [*others, *(replace(row, step_s=2 * row.step_s) for row in of_one)]
    kept = [each.expected.step_s for each in judged(slower) if each.row.program == "KempnerForge"]
    assert kept == [each.expected.step_s for each in steps if each.row.program == "KempnerForge"]


def test_a_step_is_seven_percent_off_at_the_median_and_fifteen_at_the_ninetieth_by_what_other_programs_say(
    steps: list[Judged],
) -> None:
    far = [abs(each.error) for each in on_device(steps)]
    assert len(far) > 80
    assert statistics.median(far) < 0.07
    assert statistics.quantiles(far, n=10, method="inclusive")[-1] < 0.15


@pytest.mark.parametrize("program", TODAY)
def test_a_program_of_today_is_within_fifteen_percent_at_the_median(steps: list[Judged], program: str) -> None:
    errors = [each.error for each in steps if each.row.program == program]
    assert len(errors) > 2
    assert abs(statistics.median(errors)) < 0.15


def test_fine_tuning_with_adapters_is_as_near_as_whole_models(steps: list[Judged]) -> None:
    """No constant is of these rows but the width of their interval."""
    far = [abs(each.error) for each in steps if each.row.spec.adapter is not None]
    assert len(far) > 35
    assert statistics.median(far) < 0.08
    assert statistics.quantiles(far, n=10)[-1] < 0.16


def test_75_to_85_percent_of_the_steps_lie_in_their_interval(steps: list[Judged]) -> None:
    for some in (steps, on_device(steps)):
        assert 0.75 < sum(each.is_inside for each in some) / len(some) < 0.85


def test_of_a_programs_configurations_the_faster_is_expected_to_be_faster(steps: list[Judged]) -> None:
    pairs = in_order(steps)
    assert len(pairs) > 100
    assert sum(pairs) / len(pairs) > 0.94


def test_where_the_order_of_two_is_said_to_be_sure_it_is_right_in_nine_of_ten(steps: list[Judged]) -> None:
    """And it is said of half of the pairs, more often rightly than of all; a quarter have intervals apart."""
    sure = surely_in_order(steps)
    assert 85 < len(sure) < 100
    assert sum(sure) / len(sure) > 0.97
