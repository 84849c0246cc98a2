"""Where two instants differ."""

from hypothesis import given
from hypothesis import strategies as st

from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.records.instants import Instant
from zerobench.report.figures.memory_difference import CategoryDifference, difference

KNOWN = [category for category in Category if category is not Category.TOTAL]
SIZES = st.dictionaries(st.sampled_from(KNOWN), st.integers(-(10**9), 10**12), min_size=1)


def instant(categories: dict[Category, int], total: int | None = None) -> Instant:
    whole = sum(categories.values()) if total is None else total
    return Instant(0, StepKind.STEADY, Phase.BACKWARD, whole, categories)


def test_the_largest_difference_comes_first_and_what_is_equal_is_left_out() -> None:
    a = instant({Category.PARAMETERS: 100, Category.ACTIVATIONS: 50, Category.INPUTS: 7})
    b = instant({Category.PARAMETERS: 10, Category.REDUCE_BUFFERS: 60, Category.ACTIVATIONS: 51, Category.INPUTS: 7})
    assert difference(a, b) == [
        CategoryDifference(Category.PARAMETERS, 100, 10),
        CategoryDifference(Category.REDUCE_BUFFERS, 0, 60),
        CategoryDifference(Category.ACTIVATIONS, 50, 51),
    ]


def test_without_categories_on_one_side_the_totals_alone_are_compared() -> None:
    assert difference(instant({}, 5), instant({Category.INPUTS: 8})) == [CategoryDifference(Category.TOTAL, 5, 8)]


def test_bytes_that_no_category_holds_are_unattributed() -> None:
    a, b = instant({Category.INPUTS: 8}), instant({Category.INPUTS: 8}, total=10)
    assert difference(a, b) == [CategoryDifference(Category.UNATTRIBUTED, 0, 2)]


@given(SIZES, SIZES, st.integers(0, 10**6))
def test_differences_add_up_to_that_of_the_totals(a: dict[Category, int], b: dict[Category, int], unknown: int) -> None:
    left, right = instant(a), instant(b, sum(b.values()) + unknown)
    found = difference(left, right)
    assert sum(one.more_bytes for one in found) == right.total_bytes - left.total_bytes
    sizes = [abs(one.more_bytes) for one in found]
    assert sizes == sorted(sizes, reverse=True)
