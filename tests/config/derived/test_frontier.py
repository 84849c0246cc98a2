"""The search for the most that fits: it finds the very edge, with few tries, whatever tells it the peaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.known import known
from zerobench.config.derived.frontier import Frontier, Search, Try, search, search_together, slope


def largest_fitting(
    peak_bytes: Callable[[int], int | None],
    capacity_bytes: int,
    *,
    start: int,
    most: int,
    least: int = 1,
    within: float = 0.0,
) -> Frontier:
    """The frontier of one function from a value to its peak bytes (None: out of memory)."""
    found = search_together(
        {"": search(capacity_bytes, start=start, most=most, least=least, within=within)},
        lambda asked: {key: peak_bytes(value) for key, value in asked.items()},
    )
    return found[""]


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(1, 10**5), st.integers(1, 10**7))
def test_on_a_line_the_edge_is_found_exactly(start: int, base: int, slope: int, edge: int) -> None:
    most = 10**7
    capacity = base + slope * edge + slope // 2
    found = largest_fitting(lambda value: base + slope * value, capacity, start=min(start, most), most=most)
    assert found.largest == Try(edge, base + slope * edge)
    assert (found.too_large is None) == (edge == most)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), st.integers(0, 3000), st.data())
def test_on_any_rising_function_the_edge_is_found_exactly(rises: list[int], capacity: int, data: st.DataObject) -> None:
    peaks = [sum(rises[: i + 1]) for i in range(len(rises))]
    start = data.draw(st.integers(1, len(peaks)))
    found = largest_fitting(lambda value: peaks[value - 1], capacity, start=start, most=len(peaks))
    fitting = [value for value, peak in enumerate(peaks, start=1) if peak <= capacity]
    assert (found.largest.value if found.largest else None) == (fitting[-1] if fitting else None)
    assert (found.too_large.value if found.too_large else None) == (
        len(fitting) + 1 if len(fitting) < len(peaks) else None
    )
    assert len({one.value for one in found.tries}) == len(found.tries)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_where_too_large_values_tell_nothing_the_edge_is_found_all_the_same(edge: int, start: int) -> None:
    found = largest_fitting(lambda value: value if value <= edge else None, 10**6, start=start, most=5000)
    assert found.largest == Try(edge, edge)


@pytest.mark.parametrize(
    ("peak", "most_tries"),
    [
        (lambda value: 5_000_000 + 700 * value, 9),
        (lambda value: max(9_000_000, 5_000_000 + 700 * value), 12),  # buckets first, then activations
        (lambda value: 5_000_000 + value * value // 1000, 18),  # attention that keeps its scores
    ],
)
def test_few_tries_do(peak: Callable[[int], int], most_tries: int) -> None:
    found = largest_fitting(peak, 60_000_000, start=1, most=2**20)
    assert found.largest is not None
    assert peak(found.largest.value) <= 60_000_000 < peak(found.largest.value + 1)
    assert len(found.tries) <= most_tries


def test_where_start_up_is_the_peak_at_first_few_tries_do() -> None:
    """The peaks of a 10M-parameter Llama on two CPU ranks at stage 2: buffers first, then activations."""

    def peak(value: int) -> int:
        return max(143_179_292 + 1024 * value, 81_847_632 + 15_615_488 * value)

    found = largest_fitting(peak, 300 * 2**20, start=1, most=2**16, within=0.01)
    assert [one.value if one else None for one in (found.largest, found.too_large)] == [14, 15]
    assert len(found.tries) <= 6


def test_the_most_that_may_be_asked_for_is_tried_at_once_where_the_line_leads_beyond() -> None:
    found = largest_fitting(lambda value: 5_000_000 + 700 * value, 10**9, start=1, most=2**16, within=0.01)
    assert known(found.largest).value == 2**16
    assert len(found.tries) <= 5


def test_where_an_allocator_wavers_few_tries_do_and_the_edge_is_as_close_as_asked() -> None:
    """The peaks of a 20M-parameter Llama on an A100 in MiB, by sequences: 436 needs less than 435."""
    measured = {1: 2416, 2: 2577, 435: 77688, 436: 77371, 437: 77562, 438: 77732, 439: 77917, 441: 78276, 447: 79297}

    def peak(value: int) -> int:
        return measured.get(value, 2239 + 173 * value)

    found = largest_fitting(peak, 77824, start=1, most=65536, within=0.01)
    assert found.largest is not None
    assert found.too_large is not None
    assert peak(found.largest.value) <= 77824 < peak(found.too_large.value)
    assert found.too_large.value - found.largest.value <= 0.01 * found.largest.value
    assert len(found.tries) <= 7


@given(st.integers(1, 10**5), st.floats(0, 0.5), st.integers(1, 10**6))
def test_the_edge_is_found_as_closely_as_asked(edge: int, within: float, start: int) -> None:
    found = largest_fitting(lambda value: value * value, edge * edge, start=start, most=10**6, within=within)
    assert found.too_large is not None
    largest = 0 if found.largest is None else found.largest.value
    assert largest <= edge < found.too_large.value
    assert found.too_large.value - largest <= max(1, within * largest)


@given(st.integers(1000, 10**5), st.integers(1, 10**5), st.sampled_from([None, 0.97, 1.0, 1.03]))
def test_over_a_comb_whose_odd_values_need_a_quarter_more_every_start_leads_to_the_last_even_one(
    edge: int, start: int, near: float | None
) -> None:
    peak = lambda value: value + (value // 4 if value % 2 else 0)  # noqa: E731
    first, rise = (min(start, 2 * edge) & ~1 or 2, None) if near is None else (int(near * edge), 1.0)
    found = ended(search(edge, start=first, most=10**6, within=0.01, bytes_per_step=rise), peak)
    assert 0.985 * edge <= known(found.largest).value <= edge


@pytest.mark.parametrize(("least", "start", "most"), [(0, 1, 2), (2, 1, 3), (1, 4, 3)])
def test_bounds_that_do_not_rise_are_refused(least: int, start: int, most: int) -> None:
    with pytest.raises(ValueError, match="must increase"):
        next(search(1, least=least, start=start, most=most))


def test_searches_are_asked_together_until_each_is_done() -> None:
    edges = {"a": 5, "b": 900, "c": 1}
    rounds: list[Mapping[str, int]] = []

    def peaks(asked: Mapping[str, int]) -> dict[str, int | None]:
        rounds.append(dict(asked))
        return {key: -(-100 * value // edges[key]) for key, value in asked.items()}

    searches = {key: search(100, start=1, most=1000) for key in edges}
    found = search_together(searches, peaks)
    assert set(rounds[0]) == set(edges)
    assert {key: one.largest.value for key, one in found.items() if one.largest} == edges
    assert len(rounds) == max(len(one.tries) for one in found.values())


def test_a_search_that_gets_no_answer_is_given_up_and_the_others_go_on() -> None:
    searches = {"works": search(10, start=1, most=100), "fails": search(10, start=1, most=100)}
    found = search_together(searches, lambda asked: {key: value for key, value in asked.items() if key == "works"})
    assert list(found) == ["works"]
    assert found["works"].largest == Try(10, 10)


def ended(one: Search, peak: Callable[[int], int | None]) -> Frontier:
    return search_together({"": one}, lambda asked: {key: peak(value) for key, value in asked.items()})[""]


def near(found: Frontier, capacity: int, within: float = 0.0) -> Search:
    """A search that begins where an earlier one ended."""
    rise = slope(found.tries, capacity)
    return search(capacity, start=known(found.largest).value, most=2**16, within=within, bytes_per_step=rise)


@pytest.mark.parametrize("off", [0.97, 0.994, 1.0, 1.006, 1.03])
def test_a_search_that_begins_at_a_prediction_needs_four_tries_at_most(off: float) -> None:
    capacity = 300_000_000
    predicted = largest_fitting(lambda value: 90_000_000 + 700_000 * value, capacity, start=1, most=2**16)
    found = ended(near(predicted, capacity), lambda value: int(off * (90_000_000 + 700_000 * value)))
    assert found.largest is not None
    assert off * (90_000_000 + 700_000 * found.largest.value) <= capacity
    assert off * (90_000_000 + 700_000 * (found.largest.value + 1)) > capacity
    assert len(found.tries) <= 4


@pytest.mark.parametrize("edge", [270, 284, 290, 299, 300, 301, 320])
def test_where_tries_beyond_the_edge_tell_nothing_few_do_that_begin_at_a_prediction(edge: int) -> None:
    """As on a GPU: what is beyond runs out of memory, and what fits shows less than was needed."""
    capacity = 90_000_000 + 700_000 * 300
    predicted = largest_fitting(lambda value: 90_000_000 + 700_000 * value, capacity, start=1, most=2**16)
    one = near(predicted, capacity, within=0.01)
    found = ended(one, lambda value: min(capacity, 90_000_000 + 700_000 * value) if value <= edge else None)
    assert found.largest is not None
    assert found.largest.value <= edge < known(found.too_large).value <= 1.01 * found.largest.value
    assert len(found.tries) <= 9


@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(0.1, 1e6))
def test_a_prediction_that_is_wrong_costs_tries_and_never_the_edge(edge: int, start: int, rise: float) -> None:
    one = search(1000, start=start, most=5000, bytes_per_step=rise)
    found = ended(one, lambda value: 500 + value // 100 if value <= edge else None)
    assert known(found.largest).value == edge
    assert found.too_large == Try(edge + 1, None)


def test_where_nothing_fits_a_prediction_is_taken_back_by_twice_as_much_each_time_and_halved_at_last() -> None:
    found = ended(search(1000, start=6400, most=10**4, bytes_per_step=1.0), lambda value: 1 if value <= 200 else None)
    assert [one.value for one in found.tries][:7] == [6400, 6000, 5250, 3938, 1969, 985, 493]


def test_tries_that_lie_too_near_or_do_not_rise_have_no_slope() -> None:
    assert slope([Try(100, 1000), Try(200, 1500)], 2000) == 5
    assert slope([Try(100, 1000), Try(101, 1500)], 2000) is None
    assert slope([Try(100, 1000), Try(200, 1000)], 2000) is None
    assert slope([Try(100, 1000), Try(200, None)], 2000) is None
