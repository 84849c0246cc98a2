"""The user's script as Python would run it: its `__main__`, its arguments, its path, and an end that can be told."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from zerobench.common.errors import UserError


class Kind(StrEnum):
    """What a launcher is to start."""

    FILE = "file"
    MODULE = "module"


@dataclass(frozen=True)
class Script:
    """What runs in each rank."""

    kind: Kind
    target: str
    """A path, or a module's name."""
    arguments: tuple[str, ...] = ()


def find_script(target: str, arguments: Sequence[str]) -> Script:
    """The script in the file `target`. Raises UserError: it is not there, or is no Python."""
    path = Path(target)
    if not path.exists():
        raise UserError(f"COMMAND: {target}: no such script")
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UserError(f"COMMAND: {target}: a folder without __main__.py cannot be run")
    return Script(Kind.FILE, target, tuple(arguments))


def run(script: Script) -> None:
    """Run it to its end, as `python script arguments` would; what it raises comes through."""
    sys.argv = [script.target, *script.arguments]
    if script.kind is Kind.MODULE:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(script.target, run_name="__main__", alter_sys=True)
        return
    if not Path(script.target).is_dir():
        sys.path[0] = str(Path(script.target).resolve().parent)
    runpy.run_path(script.target, run_name="__main__")


def tell(error: BaseException) -> str:
    """Print the traceback without what is above the script, as Python would; its last line."""
    trace = _below_us(error.__traceback__)
    lines = traceback.format_exception(type(error), error, trace)
    sys.stdout.flush()
    sys.stderr.write("".join(lines))
    sys.stderr.flush()
    return last_line(error)


def last_line(error: BaseException) -> str:
    """As a traceback ends: the type and the first line of what it says."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    entries = [line for line in text.splitlines() if line[:1].strip()]
    return entries[0] if entries else text


def _below_us(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that lead to the script: up to `run` above, and runpy's."""
    inner, is_below = trace, False
    while inner is not None:
        file = inner.tb_frame.f_code.co_filename
        if file == __file__:
            is_below = True
        elif is_below and "runpy" not in file:
            return inner
        inner = inner.tb_next
    return trace
