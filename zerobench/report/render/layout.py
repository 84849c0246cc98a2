"""How every terminal table is laid out: a title, one line that says how to read it, numbers, then what to know.

Text comes from sweep files and records, so all of it is put into rich as Text: nothing in it is markup.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.parity import Parity
from zerobench.report.trials import Trial


@dataclass(frozen=True)
class TableTrial:
    """A trial with the name it has in this run's tables and what is known of its losses."""

    trial: Trial
    label: str
    parity: Parity | None


@dataclass
class Section:
    """One table of the report, or a few lines."""

    title: str
    caption: str
    table: Table | None = None
    lines: list[Text] = field(default_factory=list)
    """Below the table: what marks in it mean."""

    def print(self, console: Console) -> None:
        """Print it, an empty line after it."""
        console.print(Text(self.title, style="bold"))
        if self.caption:
            console.print(Text(self.caption, style="dim"))
        if self.table is not None:
            console.print(self.table)
        for line in self.lines:
            console.print(line)
        console.print()


def mark(text: str) -> Text:
    """A line that explains a mark."""
    return Text(f"! {plain(text)}", style="yellow")


def bullets(sentences: Sequence[str]) -> Table:
    """Sentences under each other, the lines of each under its first."""
    grid = Table.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row(Text("-"), Text(plain(sentence), overflow="fold"))
    return grid
