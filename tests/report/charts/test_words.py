"""Units and words that all charts share."""

import pytest

from zerobench.report.charts import render, shown
from zerobench.report.words.column_units import byte_axis


@pytest.mark.parametrize(
    ("largest", "unit"), [(0, "B"), (1023, "B"), (1024, "KiB"), (2**30 - 1, "MiB"), (2**30, "GiB"), (5 * 2**40, "TiB")]
)
def test_a_chart_has_the_largest_unit_in_which_its_largest_value_is_one(largest: int, unit: str) -> None:
    assert byte_axis([0, largest / 3, largest]).name == unit


def test_a_table_shows_what_is_missing_as_missing_and_nothing_as_nothing() -> None:
    unit = byte_axis([2.5 * 2**30])
    assert [unit.show(value) for value in (None, float("nan"), 0, 2**30, 1536 * 2**30)] == [
        "-",
        "-",
        "0",
        "1.000",
        "1,536.000",
    ]


def test_a_share_has_the_digits_that_say_something() -> None:
    assert [shown.share(part, 1000) for part in (0, 0.5, 4, 10, 416)] == ["0%", "less than 0.1%", "0.4%", "1%", "42%"]
    assert shown.share(1, 0) == "-"


def test_only_places_of_a_drawing_are_rounded_and_never_its_words() -> None:
    import altair as alt

    rows = [{"x": 1 / 3, "name": "v0.123456", "said": "0.123456"}]
    mark = (
        alt.Chart(render.data(rows))
        .mark_bar()
        .encode(x=alt.X("x:Q"), y=alt.Y("name:N"), description=alt.Description("said:N"))
    )
    drawn = render.drawing(lambda width: render.layered([mark], width, 50), "key", "0.123456").draw()
    assert drawn.count("0.123456") >= 3
    assert "333333" not in drawn
