"""Text in CSV files: a spreadsheet must show it, and never run it as a formula.

Names of models, hosts, devices, and reasons of failures come from whoever wrote the run. Excel, LibreOffice and Google
Sheets take a cell that begins with one of `STARTS` for a formula, in quotes or not (OWASP, "CSV Injection"). An
apostrophe in front makes it text. Numbers are written by columns of numbers and are left alone.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

STARTS = "=+-@\t\r\n＝＋－＠"  # noqa: RUF001 -- the wide ones too: East Asian editions read them as the narrow ones
ESCAPABLE = rf"^('*[{re.escape(STARTS)}])"
"""Beginning of a text to escape. An apostrophe before such a text is escaped too, so that `as_text` undoes it all."""

_ESCAPABLE = re.compile(ESCAPABLE)


def as_cell(value: Any) -> Any:
    """Return a text as a spreadsheet may have it; any other value is returned as it is."""
    return f"'{value}" if isinstance(value, str) and _ESCAPABLE.match(value) else value


def as_text(cell: str) -> str:
    """Return the text that `as_cell` made `cell` of."""
    return cell[1:] if cell.startswith("'") and _ESCAPABLE.match(cell) else cell


def quoting_of(values: Iterable[Any]) -> Literal[0, 2]:
    """Return how Python's csv is to quote `values`.

    Before 3.13 it leaves a carriage return unquoted where lines end otherwise, and spreadsheets begin a row there.
    """
    has_return = any(isinstance(value, str) and "\r" in value for value in values)
    return csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL


def escaped_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its texts escaped."""
    return {name: as_cell(value) for name, value in row.items()}
