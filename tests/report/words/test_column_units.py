"""Numbers in tables: units that fit a whole column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobench.report.words.column_units import byte_unit, plain, show_percent, time_unit


@pytest.mark.parametrize(
    ("largest", "name", "shown"),
    [
        (0, "B", "0"),
        (9999, "B", "9999"),
        (10_000, "KiB", "9.77"),
        (9999 * 2**10, "KiB", "9999.0"),
        (80 * 2**20, "MiB", "80.00"),
        (9999 * 2**20, "MiB", "9999.0"),
        (80 * 2**30, "GiB", "80.00"),
        (900 * 2**30, "GiB", "900.0"),
    ],
)
def test_bytes_take_the_finest_unit_with_four_digits(largest: int, name: str, shown: str) -> None:
    unit = byte_unit([largest, 0, None])
    assert (unit.name, unit.show(largest)) == (name, shown)


@given(st.integers(0, 2**43))
def test_no_number_of_bytes_is_wider_than_six_characters(largest: int) -> None:
    assert len(byte_unit([largest]).show(largest)) <= 6


def test_nothing_is_told_from_zero_and_zero_from_a_little() -> None:
    unit = byte_unit([80 * 2**30])
    assert [unit.show(None), unit.show(0), unit.show(1)] == ["-", "0", "0.00"]


def test_times_take_the_unit_in_which_the_smallest_is_at_least_one() -> None:
    assert [time_unit(values).name for values in ([0.2, 3.0], [1.5, 3.0], [2e-5], [])] == ["ms", "s", "us", "us"]


def test_only_differences_bring_their_sign() -> None:
    assert [show_percent(0.125), show_percent(0.125, signed=True), show_percent(None)] == ["12.5", "+12.5%", "-"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert plain("a\x1b[2Jb\nc\u202ed") == "a\ufffd[2Jb\ufffdc\ufffdd"
    assert plain("模型 [bold]") == "模型 [bold]"
