"""The end of a crashed program's output in a few lines: its error, and where in the user's own code it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(r"^\s*\[rank\d+\]: ?")
"""torch's, before each line of a rank's traceback."""
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)(?:, in (\S+))?')
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(: .*)?$")
_INSTALLED = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python\d[^/\\]*)[/\\]"
    r"|[/\\]zerobench[/\\](rank|launch[/\\](machine|run|setup|tracking)|memory|running|tracking|worker|worker_tensorflow)[/\\]|^<"
)
"""Files of installed packages, of Python itself and of zerobench."""
_LAUNCHERS = re.compile(r"^(subprocess\.CalledProcessError|torch\.distributed\.\S*ChildFailedError|SystemExit)\b")
"""What launchers raise because a rank has: it says nothing of why."""
_MOST_ERRORS = 2
_MOST_LINES = 3


def printed_lines(evidence: str) -> list[str]:
    """What `evidence`, a fact with the end of the output behind it, says; without a traceback its last lines."""
    fact, _, output = evidence.partition("; last lines:\n")
    lines = [_PREFIX.sub("", line) for line in output.splitlines()]
    errors = dict(_errors(lines))
    causes = [error for error in errors if not _LAUNCHERS.match(error)] or list(errors)
    if not causes:
        ending = [line.strip() for line in lines if line.strip() and not line.startswith("== ")]
        return [f"Evidence: {fact}.", *(f"Printed last: {line}" for line in ending[-_MOST_LINES:])]
    sentences = [f"Evidence: {fact}."]
    for error in causes[:_MOST_ERRORS]:
        sentences += [f"Error: {error}", *([f"In your code: {errors[error]}"] if errors[error] else [])]
    return sentences


def own_frame(frames: Sequence[str]) -> str | None:
    """The innermost of a traceback's lines that is of no installed package, with its source: `train.py:41, in main:
    loss = model(batch)`.
    """
    place = None
    for at, line in enumerate(frames):
        match = _FRAME.match(line)
        if match is None or _INSTALLED.search(match[1]):
            continue
        source = frames[at + 1].strip() if at + 1 < len(frames) and not _FRAME.match(frames[at + 1]) else ""
        where = f"{match[1]}:{match[2]}{f', in {match[3]}' if match[3] else ''}"
        place = f"{where}: {source}" if source else where
    return place


def _errors(lines: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """The last line of each traceback with the user's frame in it; the first may have lost its beginning."""
    frames: list[str] = []
    for line in lines:
        if _TRACEBACK in line:
            frames = []
        elif frames and _ERROR.match(line):
            yield line.strip(), own_frame(frames)
            frames = []
        elif line.startswith((" ", "\t")) and (frames or _FRAME.match(line)):
            frames.append(line)
