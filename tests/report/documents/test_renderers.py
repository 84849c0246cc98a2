"""Every view in every renderer: the same cells everywhere, and where a terminal is narrow fewer columns."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.report.figures.strategies import figures as compared
from tests.report.figures.test_batch_ramp import ramped
from tests.report.figures.test_recovery import EVERY, recovered
from tests.report.sample_predictions import foretelling
from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, skipped_trial, spec
from tests.tools.printed import printed as text_of
from zerobench.config.trial.trial import Evidence
from zerobench.records.records import Failure, HostSummary
from zerobench.report.documents import markdown, terminal
from zerobench.report.documents.text import prose
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.parity import Parity, ParityJudge
from zerobench.report.figures.pipeline import StageRow
from zerobench.report.figures.predictions.predicted import join
from zerobench.report.figures.run.runs import Errors
from zerobench.report.figures.server import Side
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables import grid as page
from zerobench.report.tables.batch_ramp import batch_ramp_table
from zerobench.report.tables.checkpoints import checkpoints_table
from zerobench.report.tables.memory import device_table, host_table, nvme_table, rank_spread_table
from zerobench.report.tables.model import Column, Line, Table
from zerobench.report.tables.model_states import states_table
from zerobench.report.tables.nvml import nvml_rows, nvml_table
from zerobench.report.tables.outcomes import outcomes_table
from zerobench.report.tables.parity import parity_table
from zerobench.report.tables.part import Listing, Part
from zerobench.report.tables.peak_errors import peak_errors_table
from zerobench.report.tables.pipeline import pipeline_table
from zerobench.report.tables.server import server_table
from zerobench.report.tables.speed import speed_table
from zerobench.report.tables.strategies import claims_listing, claims_part, strategies_table
from zerobench.report.tables.trials import trials_table
from zerobench.report.tables.watched import watched_rows, watched_table

STAGE = StageRow(
    rank=1, blocks="4-7", num_params=1001, states=None, peak_bytes=None, activations_bytes=5 * 2**30, in_flight=2,
    step_s=0.25, wait_s=0.0625, ideal_fraction=0.2, passed_bytes=2**27, formula_bytes=2**27,
)  # fmt: skip
SIDE = Side(
    role="server", num_ranks=1, peak=None, states=None, step_s=0.5, wait_s=0.05, sent_bytes=2**31,
    received_bytes=2**31, formula_bytes=2**32, staleness=[0, 1, 1, 1],
)  # fmt: skip
HOST = HostSummary(
    hostname="h", interval_s=0.2, num_samples=9, largest_gap_s=0.5, peak_rss_bytes=2**31, peak_pss_bytes=2**30,
    group_peak_bytes=None, group_limit_bytes=None,
)  # fmt: skip
NVME = {"offload_optimizer": "nvme", "offload_param": "cpu", "nvme_path": "/nvme"}
REAL = completed_trial(spec("zero1", gpus_per_node=2))
REFERENCE = Parity("b", 0.0, 0.02, 9, norm_difference=0.5, norm_tolerance=0.1)


def figures(trial: SampleTrial, **changed: Any) -> TrialFigures:
    """The figures of `trial` with a hostile name."""
    return replace(trial_figures(trial), label="one | <b>two</b>", **changed)


def watched(trial: SampleTrial) -> SampleTrial:
    """The trial as it is seen from outside."""
    return trial.with_record(host=[HOST])


ONE = figures(REAL, parity=REFERENCE)
COMPARED = compared.rows(
    compared.figures(compared.spec("single", 1)), compared.figures(compared.spec("ddp"), 0.6, sent_bytes=2**22)
)
LISTING = Listing(
    [Column[int]("word", lambda n: f"w|{n}", is_text=True, narrow="w"), Column[int]("n", str, "B")], [1, 2]
)


def of_compared() -> Table[Any]:
    """The table over all rows, the second alone shown, with the hostile name."""
    return replace(strategies_table(COMPARED), lines=[Line(ONE.name, COMPARED[1])])


SOLO = completed_trial(spec("zero1", gpus_per_node=1))
CELLS = join([SOLO, foretelling(SOLO, "solo", 1.1)], ParityJudge([SOLO]))[0].cells
VIEWS: dict[str, Callable[[], Table[Any]]] = {
    "pipeline": lambda: pipeline_table([replace(ONE, stages=[STAGE])]),
    "server": lambda: server_table([replace(ONE, sides=[SIDE])]),
    "batch_ramp": lambda: batch_ramp_table([figures(ramped())]),
    "checkpoints": lambda: checkpoints_table([figures(recovered(EVERY))]),
    "device": lambda: device_table([ONE]),
    "rank_spreads": lambda: rank_spread_table([ONE]),
    "host": lambda: host_table([figures(completed_trial(spec("zero3", gpus_per_node=2, **NVME)))]),
    "nvme": lambda: nvme_table([figures(completed_trial(spec("zero3", gpus_per_node=2, **NVME)))]),
    "states": lambda: states_table([ONE]),
    "speed": lambda: speed_table([ONE], {ONE.trial_id: 7.0}),
    "parity": lambda: parity_table([ONE]),
    "outcomes": lambda: outcomes_table([figures(failed_trial(spec("zero0"), Failure(message="full", rank=2)))]),
    "trials": lambda: trials_table([ONE]),
    "nvml": lambda: nvml_table([Line(ONE.name, row) for row in nvml_rows(REAL)], ["no driver"]),
    "watched": lambda: watched_table([Line(ONE.name, row) for row in watched_rows(watched(REAL))], ["no driver"]),
    "peak_errors": lambda: peak_errors_table([Errors(ONE, Evidence.MEASURED, CELLS)]),
    "compared": of_compared,
}
IN_A_TERMINAL = [name for name in VIEWS if name not in {"trials", "peak_errors"}]
each_view = pytest.mark.parametrize("name", VIEWS)


def cells(of: Table[Any], columns: Sequence[Column[Any]]) -> list[list[str]]:
    return [[column.cell(line.figures) for column in columns] for line in of.lines]


def said(of: Table[Any]) -> list[Column[Any]]:
    """The columns that say something, and are not a terminal's alone."""
    return [column for column in of.for_files if any(column.cell(line.figures) not in {"", "-"} for line in of.lines)]


def named(of: Table[Any], **changed: Any) -> Table[Any]:
    """The table with other facts about its trials."""
    return replace(of, lines=[replace(line, trial=replace(line.trial, **changed)) for line in of.lines])


def printed(of: Table[Any], width: int) -> str:
    return text_of(partial(terminal.print_parts, [of]), width)


@each_view
def test_markdown_and_page_have_each_cell_of_each_column_that_says_something(name: str) -> None:
    of = VIEWS[name]()
    headers = [column.header for column in said(of)]
    lines = [line for line in markdown.lines(of) if line.startswith("| ")]
    assert lines[2].startswith("| one \\| \\<b\\>two\\</b\\> | ")
    assert all(prose(cell) in lines[2] for cell in cells(of, said(of))[0])
    assert lines[0] == f"| trial | evidence | {' | '.join(map(prose, headers))} |"
    shown_grid = page.table_grid(of)
    assert shown_grid.caption.endswith(of.caption_for_files[-40:])
    assert prose(of.caption_for_files) in next(markdown.lines(of))
    assert [head.text for head in shown_grid.headers] == ["trial", *headers]
    assert [list(row.cells)[1:] for row in shown_grid.rows] == cells(of, said(of))
    assert list(page.table_columns(of)) == ["trial", *(column.header for column in of.for_files)]


@pytest.mark.parametrize("name", IN_A_TERMINAL)
def test_a_wide_terminal_has_all_columns_and_a_narrow_one_those_with_a_short_header(name: str) -> None:
    of = VIEWS[name]()
    wide, narrow = printed(of, 300), printed(of, 80)
    columns = [column for column in of.columns if column.wide is not None]
    assert all(cell in wide for line in cells(of, columns) for cell in line)
    headers = [column.narrow for column in of.columns if column.narrow is not None]
    [found] = [line for line in narrow.splitlines() if line.startswith("trial ")]
    assert found.split() == ["trial", *" ".join(headers).split()]
    assert of.caption.split()[0] in narrow
    assert narrow.startswith(of.heading or of.title)


@each_view
def test_a_prediction_is_marked_in_markdown_and_on_the_page(name: str) -> None:
    of = named(VIEWS[name](), evidence="simulated", gpu="H200 SXM", status="completed", is_believed=True)
    assert "predicted (simulated on H200 SXM)" in "".join(markdown.lines(of))
    shown_grid = page.table_grid(of)
    assert shown_grid.caption.endswith("All figures are predicted (simulated on H200 SXM).")
    assert shown_grid.rows[0].kind == "predicted"


@each_view
def test_a_table_without_lines_is_nothing_anywhere(name: str) -> None:
    of = replace(VIEWS[name](), lines=[])
    assert printed(of, 80) == ""
    assert list(markdown.lines(of)) == []
    assert page.table_grid(of).rows == []


@pytest.mark.parametrize("name", IN_A_TERMINAL)
def test_a_row_that_is_not_believed_is_marked_in_the_terminal_and_on_the_page(name: str) -> None:
    doubted = named(VIEWS[name](), is_believed=False)
    assert "! one" in printed(doubted, 140)
    assert page.table_grid(doubted).rows[0].kind == "doubted"


def test_what_is_said_below_is_the_terminals_alone() -> None:
    of = VIEWS["server"]()
    assert "0 x1, 1 x3" in printed(of, 120)
    assert "0 x1, 1 x3" not in "".join(markdown.lines(of))


def shown(part: Part, width: int) -> str:
    return text_of(partial(terminal.print_parts, [part]), width)


def test_a_listing_has_each_row_in_each_renderer_and_only_short_headers_in_80_columns() -> None:
    assert "n, B" in shown(Part("t", table=LISTING), 120)
    assert "n, B" not in shown(Part("t", table=LISTING), 80)
    assert all(f"w|{n}" in shown(Part("t", table=LISTING), 80) for n in LISTING.rows)
    assert list(markdown.listing_lines(LISTING))[2:] == ["| w\\|1 | 1 |", "| w\\|2 | 2 |"]
    grid = page.listing_grid("c", LISTING)
    assert [list(row.cells) for row in grid.rows] == [["w|1", "1"], ["w|2", "2"]]
    assert [head.is_number for head in grid.headers] == [False, True]


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


@pytest.mark.parametrize(("norm_difference", "verdict"), [(0.1, "unjudged"), (1.0, "DISAGREES")])
def test_losses_that_differ_by_design_are_unjudged_unless_the_scale_of_gradients_is_wrong(
    norm_difference: float, verdict: str
) -> None:
    parity = replace(REFERENCE, is_judged=False, norm_difference=norm_difference, norm_tolerance=0.4)
    [line] = parity_table([figures(REAL, parity=parity)]).lines
    assert line.figures.verdict == verdict


@pytest.mark.parametrize(("difference", "verdict"), [(0.0, "agrees to step 4"), (9.0, "DISAGREES")])
def test_the_step_until_which_losses_are_judged_is_told_where_training_turned_unstable(
    difference: float, verdict: str
) -> None:
    parity = replace(REFERENCE, difference=difference, norm_difference=0.0, num_steps=4, is_cut=True)
    table = parity_table([figures(REAL, parity=parity)])
    assert [line.figures.verdict for line in table.lines] == [verdict]
    assert "later steps are not judged" in table.caption


def test_points_without_a_table_are_a_list_whose_lines_stand_below_each_other() -> None:
    lines = [line.rstrip() for line in shown(Part("t", points=["word " * 9]), 30).splitlines()]
    assert lines[1:3] == ["- word word word word word", "  word word word word"]


def test_claims_that_a_run_is_silent_about_are_marked_on_the_page_and_are_one_line_in_the_terminal() -> None:
    kinds = {row.cells[1]: row.kind for row in page.listing_grid("c", claims_listing(COMPARED)).rows}
    assert kinds["not testable"] == "skipped"
    [part] = claims_part(COMPARED)
    assert shown(part, 200).count("not testable") == 0
    assert shown(part, 200).count("Not covered by this run: ") == 1


def test_without_a_comparison_there_are_no_claims() -> None:
    alone = COMPARED[:1]
    assert (list(claims_part(alone)), strategies_table(alone).lines, claims_listing(alone).rows) == ([], [], [])


def test_how_to_read_the_rest_needs_a_wide_terminal() -> None:
    of = VIEWS["compared"]()
    assert "Rajbhandari" in printed(of, 140)
    assert "Rajbhandari" not in printed(of, 80)
    assert "Rajbhandari" in "".join(markdown.lines(of))
    assert "Rajbhandari" in page.table_grid(of).caption


def test_markdown_counts_the_rows_that_it_leaves_out() -> None:
    of = Table("t", "c", [Column[int]("n", str)], [Line(ONE.name, n) for n in range(markdown.MOST_ROWS + 3)])
    assert list(markdown.lines(of))[-1] == "3 more rows on the page."


def test_the_title_says_whether_trials_were_skipped_did_not_complete_or_both_and_skipped_ones_have_no_time() -> None:
    skipped = figures(skipped_trial(spec("zero2", offload_param="cpu"), "a_rule"))
    failed = figures(failed_trial(spec("zero0"), Failure(message="full", rank=2)))
    alone, both, none = outcomes_table([skipped]), outcomes_table([skipped, failed]), outcomes_table([failed])
    assert (alone.title, [column.header for column in alone.columns]) == ("Skipped trials", ["status", "why"])
    assert (both.title, both.columns[1].header) == ("Trials skipped or not completed", "after")
    assert none.title == "Trials that did not complete"


def test_a_trial_without_figures_of_these_kinds_has_no_lines() -> None:
    none = [figures(completed_trial(spec("zero1", gpus_per_node=1)))]
    for make in (pipeline_table, server_table, batch_ramp_table, checkpoints_table, host_table, nvme_table):
        assert make(none).lines == []
    assert outcomes_table(none).lines == []
    failed = [figures(failed_trial(spec("zero0"), Failure(message="full", rank=2)))]
    of_completed: Sequence[Callable[[Any], Table[Any]]] = (device_table, rank_spread_table, states_table, parity_table)
    assert [view(failed).lines for view in of_completed] == [[]] * 4
    assert speed_table(failed).lines == []


@pytest.mark.parametrize("name", IN_A_TERMINAL)
def test_a_column_that_a_view_is_given_stands_in_every_place(name: str) -> None:
    of = VIEWS[name]()
    more = replace(of, columns=[*of.columns, Column[Any]("new", lambda _: "told", "GiB", narrow="new")])
    assert "new, GiB" in printed(more, 300)
    assert "new" in printed(more, 80).split()
    places = [*markdown.lines(more), *page.table_grid(more).rows[0].cells, *page.table_columns(more)["new, GiB"]]
    assert sum("told" in place for place in places) == 2 * len(of.lines) + 1
