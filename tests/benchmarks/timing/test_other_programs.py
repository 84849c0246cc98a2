"""Steps that other programs published, on GPUs that nobody here had, beside what is expected of them."""

import statistics

import pytest

from benchmarks.timing.other_programs import TABLE, Judged, in_order, judged, rows, text
from zerobench.spec.trial import Offload

TODAY = ("vectorlm", "atorch", "torchtune", "KempnerForge")
"""Programs of 2024 and later: their attention is that which the rates are of."""


@pytest.fixture(scope="module")
def steps() -> list[Judged]:
    return [judged(row) for row in rows()]


def on_device(steps: list[Judged]) -> list[Judged]:
    return [each for each in steps if each.row.spec.offload_optimizer is Offload.NONE]


def test_the_committed_table_is_that_of_the_committed_rows(steps: list[Judged]) -> None:
    assert TABLE.read_text(encoding="utf-8") == text(steps)


def test_a_step_of_any_program_is_seven_percent_off_at_the_median(steps: list[Judged]) -> None:
    assert statistics.median(abs(each.error) for each in on_device(steps)) < 0.07


@pytest.mark.parametrize("program", TODAY)
def test_steps_of_one_to_64_gpus_compiled_or_not_are_within_a_tenth(steps: list[Judged], program: str) -> None:
    errors = [each.error for each in steps if each.row.program == program]
    assert len(errors) > 2
    assert max(map(abs, errors)) < 0.1


def test_fine_tuning_with_adapters_is_as_near_as_whole_models(steps: list[Judged]) -> None:
    """No constant is of these rows but the width of their interval."""
    far = [abs(each.error) for each in steps if each.row.spec.adapter is not None]
    assert len(far) > 35
    assert statistics.median(far) < 0.08
    assert statistics.quantiles(far, n=10)[-1] < 0.16


def test_three_of_four_to_six_of_seven_steps_lie_in_their_interval(steps: list[Judged]) -> None:
    for some in (steps, on_device(steps)):
        assert 0.75 < sum(each.is_inside for each in some) / len(some) < 0.85


def test_of_a_programs_configurations_the_faster_is_expected_to_be_faster(steps: list[Judged]) -> None:
    pairs = in_order(steps)
    assert len(pairs) > 100
    assert sum(pairs) / len(pairs) > 0.94
