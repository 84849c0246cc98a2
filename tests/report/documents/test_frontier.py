"""The table of a plan's frontier."""

from tests.report.documents.run import cluster
from tests.tools.printed import printed
from zerobench.config.derived.frontier import Frontier
from zerobench.config.derived.frontier_axes import frontier_axis
from zerobench.report.documents.terminal import print_parts
from zerobench.report.tables.plan_frontier import FrontierRow, frontier_part


def test_a_label_in_brackets_is_shown_as_it_stands() -> None:
    """A model's name is the user's own, and no markup."""
    rows = [FrontierRow(label, Frontier(None, None, ()), None) for label in ("x [/nothing]", "[red]y")]
    part = frontier_part(frontier_axis("micro-batch"), rows, cluster())
    text = printed(lambda console: print_parts([part], console), 100)
    assert "x [/nothing]" in text
    assert "[red]y" in text
