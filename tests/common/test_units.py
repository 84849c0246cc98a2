"""What people read and write: bytes, counts and seconds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.refusals import at_most_one_line, one_line
from zerobench.common.units import format_bytes, format_count, format_seconds, format_spent, parse_bytes


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_320_702_444, "1.23 GiB"),
        (2**30 - 1, "1.00 GiB"),
        (-(3 * 2**19), "-1.50 MiB"),
        (5 * 2**40, "5.00 TiB"),
        (4096 * 2**40, "4096.00 TiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_binary_unit(num_bytes: float | None, shown: str) -> None:
    assert format_bytes(num_bytes) == shown


def test_bytes_are_shown_with_as_many_digits_as_asked_for() -> None:
    assert format_bytes(1_320_702_444, digits=1) == "1.2 GiB"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (57, "57"),
        (999, "999"),
        (1_235_814_400, "1.24 B"),
        (124_439_808, "124 M"),
        (999_999, "1.00 M"),
        (12_345, "12.3 K"),
        (174_600_000_000, "175 B"),
        (2.5e12, "2.50 T"),
        (-20_200_000, "-20.2 M"),
        (2.5, "2.50"),
    ],
)
def test_counts_are_shown_to_three_significant_digits(count: float | None, shown: str) -> None:
    assert format_count(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (45e-6, "45.0 us"),
        (0.9996e-3, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (0.99999, "1.00 s"),
        (1.234, "1.23 s"),
        (59.97, "1 min 00 s"),
        (125.2, "2 min 05 s"),
        (3599.9, "1 h 00 min"),
        (3725, "1 h 02 min"),
        (-0.5, "-500 ms"),
    ],
)
def test_seconds_are_shown_in_the_unit_that_fits(seconds: float | None, shown: str) -> None:
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, "0 s"), (5.2, "5 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3725.0, "1 h 02 min")]
)
def test_time_that_goes_on_is_in_whole_seconds(seconds: float, shown: str) -> None:
    assert format_spent(seconds) == shown


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1TB", 10**12),
        ("80GiB", 80 * 2**30),
        ("80 gib", 80 * 2**30),
        ("2e9", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("512", 512),
        ("7 B", 7),
        (".5kB", 500),
        ("143771 MiB", 150_754_820_096),
        (0, 0),
        (1e3, 1000),
        (2**62 + 1, 2**62 + 1),
        ("4611686018427387905", 2**62 + 1),
    ],
)
def test_written_bytes_are_read_exactly(text: str | float, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "nonsense",
    [
        *["", "GiB", "-1GiB", "1 GiBB", "1e400", "nan", "inf", "1,5GB", "1_000", "²GiB", "9e18 TiB", "0x10"],
        *[None, True, [], float("nan"), float("inf"), -1, 2**63, "9" * 5000],
    ],
)
def test_nonsense_bytes_are_refused_in_one_line_that_names_the_field(nonsense: Any) -> None:
    with one_line(match=r"^memory: .*80GiB"):
        parse_bytes(nonsense, field="memory")


@pytest.mark.parametrize(("text", "decimal", "binary"), [("80G", "80 GB", "80 GiB"), ("5k", "5 kB", "5 KiB")])
def test_a_unit_that_two_people_read_differently_is_refused_with_both_readings(
    text: str, decimal: str, binary: str
) -> None:
    with one_line("ambiguous", decimal, binary):
        parse_bytes(text)


@given(st.text())
def test_any_text_is_read_or_refused_without_a_traceback(text: str) -> None:
    with at_most_one_line():
        assert parse_bytes(text) >= 0


@given(st.integers(min_value=0, max_value=2**60))
def test_shown_bytes_read_back_within_the_rounding(num_bytes: int) -> None:
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.005)


@given(st.floats(min_value=1, max_value=9.98e14))
def test_a_shown_count_has_at_most_three_digits(count: float) -> None:
    digits = [c for c in format_count(count).split()[0] if c.isdigit()]
    assert len(digits) <= 3
