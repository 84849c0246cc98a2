"""What is shown in a terminal, as text."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from zerobench.report.documents.show import show_run


def printed(show: Callable[[Console], object], width: int = 80, **terminal: Any) -> str:
    """What `show` prints on a terminal of this width, which has no colours unless `terminal` says otherwise."""
    file = io.StringIO()
    show(Console(**{"width": width, "file": file, "color_system": None, **terminal}))
    return file.getvalue()


def shown_run(run: Path, width: int = 80, **options: Any) -> str:
    """The tables of a run, without blanks at the ends of lines."""
    return without_trailing_blanks(printed(lambda console: show_run(run, console, **options), width))


def without_trailing_blanks(text: str) -> str:
    """The same lines without the blanks at their ends."""
    return re.sub(r" +$", "", text, flags=re.MULTILINE)
