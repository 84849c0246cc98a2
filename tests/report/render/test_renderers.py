"""Every view in every renderer: the same cells everywhere, and where a terminal is narrow fewer columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from tests.report.sample_run import completed_trial, spec
from tests.report.test_batch_ramp import ramped
from tests.report.test_recovery import EVERY, recovered
from zerobench.report.batch_ramp import batch_figures
from zerobench.report.pipeline import StageRow
from zerobench.report.recovery import resumed
from zerobench.report.render import frame, html, markdown, terminal
from zerobench.report.server import Side
from zerobench.report.tables.batch_ramp import batch_ramp_table
from zerobench.report.tables.checkpoints import checkpoints_table
from zerobench.report.tables.model import Column, Line, Table, TrialName
from zerobench.report.tables.pipeline import pipeline_table
from zerobench.report.tables.server import server_table

MEASURED = TrialName("a_run", "a", "one | two", "measured", None)
PREDICTED = TrialName("a_run", "b", "<b>three</b>", "simulated", "H200 SXM")
STAGE = StageRow(
    rank=1, blocks="4-7", num_params=1001, states=None, peak=None, activations_bytes=5 * 2**30, in_flight=2,
    step_s=0.25, wait_s=0.0625, ideal_fraction=0.2, passed_bytes=2**27, formula_bytes=2**27,
)  # fmt: skip
SIDE = Side(
    role="server", num_ranks=1, peak=None, states=None, step_s=0.5, wait_s=0.05, sent_bytes=2**31,
    received_bytes=2**31, formula_bytes=2**32, staleness=[0, 1, 1, 1],
)  # fmt: skip
VIEWS: dict[str, tuple[Callable[[Any], Table[Any]], Sequence[Any]]] = {
    "pipeline": (pipeline_table, [STAGE]),
    "server": (server_table, [SIDE]),
    "batch_ramp": (batch_ramp_table, batch_figures(ramped())),
    "checkpoints": (checkpoints_table, [resumed(recovered(EVERY), ())]),
}
each_view = pytest.mark.parametrize("name", VIEWS)


def table(name: str, trial: TrialName = MEASURED) -> Table[Any]:
    make, figures = VIEWS[name]
    return make([Line(trial, one) for one in figures])


def cells(of: Table[Any]) -> list[list[str]]:
    return [[column.cell(line.figures) for column in of.columns] for line in of.lines]


def printed(of: Table[Any], width: int) -> str:
    out = StringIO()
    for section in terminal.sections(of, width):
        section.print(Console(file=out, width=width))
    return out.getvalue()


@each_view
def test_markdown_and_page_have_each_cell_of_each_column(name: str) -> None:
    of = table(name)
    rows = [line for line in markdown.lines(of) if line.startswith("| one")]
    assert [row.split(" | ")[2:] for row in rows] == [[*line[:-1], f"{line[-1]} |"] for line in cells(of)]
    assert rows[0].startswith("| one \\| two | measured |")
    headers = [column.header for column in of.columns]
    said = [any(line[index] != "-" for line in cells(of)) for index in range(len(headers))]
    assert [head.text for head in html.table_grid(of).headers] == [
        "trial",
        *(header for header, is_said in zip(headers, said, strict=True) if is_said),
    ]
    assert list(frame.table_frame(of).columns) == ["trial", *headers]


@each_view
def test_a_wide_terminal_has_all_columns_and_a_narrow_one_those_with_a_short_header(name: str) -> None:
    of = table(name)
    wide, narrow = printed(of, 200), printed(of, 80)
    for line in cells(of):
        assert all(cell in wide for cell in line)
    headers = [column.narrow for column in of.columns if column.narrow is not None]
    [found] = [line for line in narrow.splitlines() if line.startswith("trial ")]
    assert found.split() == ["trial", *" ".join(headers).split()]
    assert of.caption.split()[0] in narrow


@each_view
def test_a_prediction_is_marked_in_markdown_and_on_the_page(name: str) -> None:
    of = table(name, PREDICTED)
    assert "predicted (simulated on H200 SXM)" in "".join(markdown.lines(of))
    assert html.table_grid(of).headers[1].text == "figures are"
    assert html.table_grid(of).rows[0].cells[1] == "predicted (simulated on H200 SXM)"
    assert "<b>" not in "".join(markdown.lines(of)).replace("\\<b\\>", "")


@each_view
def test_a_table_without_lines_is_nothing_anywhere(name: str) -> None:
    of = Table("title", "caption", table(name).columns, [])
    assert printed(of, 80) == ""
    assert list(markdown.lines(of)) == []
    assert html.table_grid(of).rows == []


def test_a_row_that_is_not_believed_is_marked_in_the_terminal() -> None:
    doubted = TrialName("a_run", "a", "wrong", "measured", None, is_believed=False)
    assert "! wrong" in printed(table("server", doubted), 120)


def test_what_is_said_below_is_the_terminals_alone() -> None:
    of = table("server")
    assert "0 x1, 1 x3" in printed(of, 120)
    assert "0 x1, 1 x3" not in "".join(markdown.lines(of))


def test_markdown_counts_the_rows_that_it_leaves_out() -> None:
    of = Table("t", "c", [Column[int]("n", str)], [Line(MEASURED, n) for n in range(markdown.MOST_ROWS + 3)])
    assert list(markdown.lines(of))[-1] == "3 more rows are left out; the page has them."


def test_a_trial_without_figures_of_these_kinds_has_no_lines() -> None:
    assert resumed(completed_trial(spec("zero1")), ()) is None
