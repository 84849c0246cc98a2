"""What is taken for granted of a step's expected time, in words."""

import pytest

from zerobench.report.step_time.known import overhead_assumption


@pytest.mark.parametrize(("step_s", "is_named"), [(0.1, True), (0.69, True), (0.70, False), (5.0, False)])
def test_what_a_loop_does_between_steps_is_named_where_it_weighs(step_s: float, is_named: bool) -> None:
    assumed = overhead_assumption(0.0695, step_s)
    assert bool(assumed) is is_named
    assert all(words.startswith("70 ms of each step are data loading and logging") for words in assumed)
