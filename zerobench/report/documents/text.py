"""Text from sweeps, records and logs as GitHub's Markdown, where it must be read and never act.

Two things are to be stopped. Markdown itself (emphasis, links, images, HTML, tables, formulas) is stopped by
backslashes (GitHub Flavored Markdown Spec, 6.1 and 2.4). What GitHub does to the finished page is not: a mention
notifies people, a number becomes a link, an address too, `:name:` a picture. Between the letters of these goes a space
of no width; what is in code spans and blocks GitHub leaves alone.
"""

import re
from collections.abc import Iterable, Sequence

from zerobench.report.words.column_units import plain

_ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"

_HOST_ENDS = r"[a-z]{2}|biz|com|edu|gov|net|org|pro|web|xxx|aero|asia|coop|info|museum|name|shop|\u0440\u0444|xn--\w+"
"""Ends of host names by linkify-it (its default list, and every country's two letters)."""
_SPECIAL = re.compile(
    rf"[\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=\S)\.(?=(?:{_HOST_ENDS})(?![^\W_]))", re.IGNORECASE
)
"""Characters that mean something anywhere; an underscore within a word means nothing. The dot of what looks like a
host's name is one too: GitHub leaves `train.py` alone, other renderers make a link to Paraguay of it."""
_AT_START = re.compile(r"^(\s*)(#|[-+=](?=[\s=-]|$)|\d+(?=[.)](\s|$)))")
"""Beginnings of a line that make it a heading, a list or a rule."""
_ACTS = re.compile(
    r"(?P<mention>@(?=[\w-]))"
    r"|(?P<number>(?:#|GH-)(?=\d))"
    r"|(?P<address>:(?=//)|(?<=www)\.)"
    r"|(?P<picture>:(?=[\w+-]+:))"
    r"|(?P<link>(?<=mailto):|(?<=xmpp):)",
    re.IGNORECASE,
)
"""What GitHub looks for in the finished page, up to the character after which a space of no width stops it."""


def prose(text: str) -> str:
    """`text` within a line or a table's cell of Markdown, that shows it and does nothing else."""
    quiet = _ACTS.sub(lambda match: match.group() + _ZERO_WIDTH_SPACE, plain(text))
    return _SPECIAL.sub(lambda match: "\\" + match.group(), quiet)


def paragraph(text: str) -> str:
    """`text` as a line of its own, or what a list's point begins with."""
    return _AT_START.sub(_stopped, prose(text).strip())


def _stopped(match: re.Match[str]) -> str:
    """The start of a line that would be a heading or a list, with a backslash before what makes it one."""
    space, sign = match.group(1, 2)
    return f"{space}{sign}\\" if sign.isdigit() else f"{space}\\{sign}"


def code(text: str) -> str:
    """`text` in a code span, for table cells too: a bar is escaped, which only they undo."""
    one_line = plain(text)
    if not one_line.strip():
        return prose(one_line)
    fence = "`" * (_longest_run(one_line) + 1)
    pad = " " if one_line.startswith(("`", " ")) or one_line.endswith(("`", " ")) else ""
    return f"{fence}{pad}{one_line}{pad}{fence}".replace("|", "\\|")


def block(text: str, language: str = "") -> list[str]:
    """The lines of `text` as a block of code, `language` naming how to colour it."""
    lines = [plain(line) for line in text.splitlines()]
    fence = "`" * max(3, max(map(_longest_run, lines), default=0) + 1)
    return [f"{fence}{language}", *lines, fence]


def _longest_run(text: str) -> int:
    """The most backticks in a row."""
    return max((len(run) for run in re.findall("`+", text)), default=0)


def table(headers: Sequence[str], is_text: Sequence[bool], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table of plain texts; numbers stand to the right."""
    rule = ["---" if left else "---:" for left in is_text]
    cells = [list(map(prose, headers)), rule, *(list(map(prose, row)) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in cells]


def bullets(sentences: Iterable[str]) -> list[str]:
    """A list of plain sentences."""
    return [f"- {paragraph(sentence)}" for sentence in sentences]
