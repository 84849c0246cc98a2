"""The table of a plan's frontier."""

from __future__ import annotations

import io

from rich.console import Console

from tests.report.plan.run import cluster
from zerobench.report.plan.frontier import FrontierRow, frontier_section
from zerobench.spec.frontier import Frontier
from zerobench.spec.frontier_axes import frontier_axis


def test_a_label_in_brackets_is_shown_as_it_stands() -> None:
    """A model's name is the user's own, and no markup."""
    rows = [FrontierRow(label, Frontier(None, None, ()), None) for label in ("x [/nothing]", "[red]y")]
    console = Console(width=100, file=io.StringIO(), color_system=None)
    frontier_section(frontier_axis("micro-batch"), rows, cluster(), 100).print(console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "x [/nothing]" in text
    assert "[red]y" in text
