"""Every view in every renderer: the same cells everywhere, and where a terminal is narrow fewer columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from tests.report.compared import figures as compared
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
from zerobench.report.tables.compared import claims_listing, claims_part, compared_table
from zerobench.report.tables.model import Column, Line, Table, TrialName
from zerobench.report.tables.part import Listing, Part
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
COMPARED = compared.rows(
    compared.figures(compared.spec("single", 1)), compared.figures(compared.spec("ddp"), 0.6, sent_bytes=2**22)
)
LISTING = Listing(
    [Column[int]("word", lambda n: f"w|{n}", is_text=True, narrow="w"), Column[int]("n", str, "B")], [1, 2]
)


def of_compared(lines: Sequence[Line[Any]]) -> Table[Any]:
    """The table over all rows, the given line alone shown."""
    return replace(compared_table(COMPARED), lines=lines)


VIEWS: dict[str, tuple[Callable[[Any], Table[Any]], Sequence[Any]]] = {
    "pipeline": (pipeline_table, [STAGE]),
    "server": (server_table, [SIDE]),
    "batch_ramp": (batch_ramp_table, batch_figures(ramped())),
    "compared": (of_compared, COMPARED[1:]),
    "checkpoints": (checkpoints_table, [resumed(recovered(EVERY), ())]),
}
each_view = pytest.mark.parametrize("name", VIEWS)


def table(name: str, trial: TrialName = MEASURED) -> Table[Any]:
    make, figures = VIEWS[name]
    return make([Line(trial, one) for one in figures])


def cells(of: Table[Any]) -> list[list[str]]:
    return [[column.cell(line.figures) for column in of.for_files] for line in of.lines]


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
    headers = [column.header for column in of.for_files]
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
        assert all(cell in wide for column, cell in zip(of.for_files, line, strict=True) if column.wide is not None)
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


def shown(part: Part, width: int) -> str:
    out = StringIO()
    terminal.part_section(part, width).print(Console(file=out, width=width))
    return out.getvalue()


def test_a_listing_has_each_row_in_each_renderer_and_only_short_headers_in_80_columns() -> None:
    assert "n, B" in shown(Part("t", table=LISTING), 120)
    assert "n, B" not in shown(Part("t", table=LISTING), 80)
    assert all(f"w|{n}" in shown(Part("t", table=LISTING), 80) for n in LISTING.rows)
    assert list(markdown.listing_lines(LISTING))[2:] == ["| w\\|1 | 1 |", "| w\\|2 | 2 |"]
    assert [list(row.cells) for row in html.listing_grid("c", LISTING).rows] == [["w|1", "1"], ["w|2", "2"]]


def test_a_part_says_all_that_it_has_in_the_terminal_and_in_markdown() -> None:
    part = Part("title", "caption", LISTING, ["text"], ["quiet"], ["point"], ["warning"])
    assert [
        word for word in ("title", "caption", "text", "quiet", "- point", "! warning") if word not in shown(part, 80)
    ] == []
    text = markdown.document("heading", [part], level=2)
    assert [
        word for word in ("## heading", "### title", "caption", "- point", "**!** warning") if word not in text
    ] == []


def test_what_a_part_says_is_shown_and_not_obeyed_in_markdown() -> None:
    evil = "<img src=x onerror=alert(1)>"
    listing = Listing([Column[str](evil, str, is_text=True)], [evil])
    text = markdown.document(evil, [Part(evil, evil, listing, points=[evil], warnings=[evil])], level=1)
    assert text.count("\\<img src=x") == 7
    assert not re.search(r"(?<!\\)<img", text)


def test_points_without_a_table_are_a_list_whose_lines_stand_below_each_other() -> None:
    lines = [line.rstrip() for line in shown(Part("t", points=["word " * 9]), 30).splitlines()]
    assert lines[1:3] == ["- word word word word word", "  word word word word"]


def test_claims_that_a_run_is_silent_about_are_marked_on_the_page_and_are_one_line_in_the_terminal() -> None:
    kinds = {row.cells[1]: row.kind for row in html.listing_grid("c", claims_listing(COMPARED)).rows}
    assert kinds["cannot be judged"] == "skipped"
    [part] = claims_part(COMPARED)
    assert shown(part, 200).count("cannot be judged") == 0
    assert shown(part, 200).count("Cannot be judged by this run: ") == 1


def test_without_a_comparison_there_are_no_claims() -> None:
    alone = COMPARED[:1]
    assert (list(claims_part(alone)), compared_table(alone).lines, claims_listing(alone).rows) == ([], [], [])


def test_how_to_read_the_rest_needs_a_wide_terminal() -> None:
    of = table("compared")
    assert "Rajbhandari" in printed(of, 140)
    assert "Rajbhandari" not in printed(of, 80)
    assert "Rajbhandari" in "".join(markdown.lines(of))
    assert "Rajbhandari" in html.table_grid(of).caption


def test_a_row_that_is_not_believed_is_marked_on_the_page() -> None:
    doubted = TrialName("a_run", "a", "wrong", "measured", None, is_believed=False)
    assert html.table_grid(table("server", doubted)).rows[0].kind == "doubted"


def test_markdown_counts_the_rows_that_it_leaves_out() -> None:
    of = Table("t", "c", [Column[int]("n", str)], [Line(MEASURED, n) for n in range(markdown.MOST_ROWS + 3)])
    assert list(markdown.lines(of))[-1] == "3 more rows are left out; the page has them."


def test_a_trial_without_figures_of_these_kinds_has_no_lines() -> None:
    assert resumed(completed_trial(spec("zero1")), ()) is None
