"""The words and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zerobench.errors import UserError


def _can_be(path: Path) -> Path:
    """Raises UserError for a path that no folder can have: a link that leads to itself, a name that is too long."""
    try:
        path.stat()
    except FileNotFoundError:
        return path
    except OSError as error:
        shown = str(path) if len(str(path)) <= _LONGEST else f"{str(path)[:_LONGEST]}..."
        raise UserError(f"--reports: {shown}: {error.strerror}") from None
    return path


_LONGEST = 100
Reports = Annotated[Path, typer.Option("--reports", metavar="DIR", help="Where run folders lie.", callback=_can_be)]
RunName = Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder or its name; the newest one.")]
SweepName = Annotated[str | None, typer.Argument(metavar="SWEEP", help="A sweep file, or the name of a shipped one.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="AXIS=VALUE,...",
        help="Replace an axis or a value (timeout_s=900: seconds without progress) of the sweep; may be repeated.",
    ),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="AXIS=VALUE,...", help="Keep only these points; may be repeated.")
]
REPORTS = Path("reports")
"""Where run folders lie unless said otherwise."""
