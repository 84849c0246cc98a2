"""Values together that have a key in common."""

import pytest

from zerobench.common.grouped import grouped

pytestmark = pytest.mark.fast


def test_keys_and_values_stand_in_the_order_of_first_sight() -> None:
    assert list(grouped(["bb", "a", "cc", "d", "bb"], len).items()) == [(2, ["bb", "cc", "bb"]), (1, ["a", "d"])]


def test_nothing_has_no_group() -> None:
    assert grouped([], len) == {}
