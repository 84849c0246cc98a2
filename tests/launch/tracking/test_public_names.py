"""The names for users' training bring torch when they are asked for."""

import pytest

import zerobench
from zerobench.common.errors import UserError


def test_tracking_is_found_under_the_packages_own_name():
    assert zerobench.track.__module__ == "zerobench.launch.tracking.tracker"


def test_a_name_that_is_not_there_is_refused_as_by_any_module():
    with pytest.raises(AttributeError, match="module 'zerobench' has no attribute 'nonsense'"):
        _ = zerobench.nonsense  # type: ignore[attr-defined] # which type checkers know


def test_what_is_no_engine_is_refused_by_its_type():
    with pytest.raises(UserError, match="engine: dict is not a DeepSpeed engine"):
        zerobench.track({})


def test_numbers_of_steps_that_are_not_possible_are_refused():
    class Engine:
        backward = step = is_gradient_accumulation_boundary = None

    with pytest.raises(UserError, match="memory"):
        zerobench.track(Engine(), memory=0)
