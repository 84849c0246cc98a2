"""The table of a plan's frontier."""

import io

from rich.console import Console

from tests.report.plan.run import cluster
from zerobench.report.render.terminal import print_parts
from zerobench.report.tables.plan_frontier import FrontierRow, frontier_part
from zerobench.spec.frontier import Frontier
from zerobench.spec.frontier_axes import frontier_axis


def test_a_label_in_brackets_is_shown_as_it_stands() -> None:
    """A model's name is the user's own, and no markup."""
    rows = [FrontierRow(label, Frontier(None, None, ()), None) for label in ("x [/nothing]", "[red]y")]
    console = Console(width=100, file=io.StringIO(), color_system=None)
    print_parts([frontier_part(frontier_axis("micro-batch"), rows, cluster())], console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "x [/nothing]" in text
    assert "[red]y" in text
