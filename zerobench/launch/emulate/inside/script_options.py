"""Hears which options a user's script parses, and what it read: argparse's, and so the Hugging Face parsers'."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from zerobench.launch.emulate.options import NAMES, Option, Value

OptionsListener = Callable[[list[Option]], None]
"""Given the options that can be varied."""

_ACCELERATE = "ACCELERATE_MIXED_PRECISION"


def hear_options(listener: OptionsListener) -> None:
    """Call `listener` whenever a parser has read the process's own arguments."""
    parser: Any = argparse.ArgumentParser
    parse = parser.parse_known_args

    @wraps(parse)
    def parse_known_args(self: Any, args: Sequence[str] | None = None, namespace: Any = None, **more: Any) -> Any:
        given = list(sys.argv[1:])
        read = parse(self, args, namespace, **more)
        if args is None or list(args) == given:
            listener(_options(self, read[0]))
        return read

    parser.parse_known_args = parse_known_args


def launcher_options() -> list[Option]:
    """What accelerate's launcher has set, where it was the one that started the script."""
    if _ACCELERATE not in os.environ:
        return []
    name = "mixed_precision"
    return [Option(dest=name, names=[f"--{name}"], value=os.environ[_ACCELERATE], of_launcher=True)]


def _options(parser: argparse.ArgumentParser, read: argparse.Namespace) -> list[Option]:
    return [
        Option(
            dest=action.dest,
            names=list(action.option_strings),
            value=_plain(getattr(read, action.dest, None)),
            is_flag=action.nargs == 0,
        )
        for action in parser._actions
        if action.option_strings and action.dest in NAMES
    ]


def _plain(value: Any) -> Value:
    return value if isinstance(value, bool | int | str) else None
