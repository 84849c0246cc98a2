"""How a command's answer reaches whoever asked: tables for people, one JSON document for programs.

A command returns an `Answer`; `answering` gives it `--json` and `--quiet` and prints what was asked for. Under `--json`
standard output holds the document alone, and whatever else a command says (progress, notes) goes to standard error.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from zerobench import __version__
from zerobench.common.plain_values import plain_value


def _nothing() -> None:
    """A command that showed all while it worked has nothing left to show."""


@dataclass(frozen=True)
class Answer:
    """What a command found out."""

    document: Callable[[], Mapping[str, Any]]
    """For programs; fields.py says what each of its fields is."""
    show: Callable[[], object] = _nothing
    """Prints it for people."""
    exit_code: int = 0


def answering(command: Callable[..., Answer]) -> Callable[..., int]:
    """`command` with the options `--json` and `--quiet`; it returns its exit status.

    A request that it takes, a dataclass, has an option for each field, by its metadata; or for each that the mapping
    names with which the request is annotated.
    """
    signature = inspect.signature(command, eval_str=True)
    asked = {name: _made_of(parameter) for name, parameter in signature.parameters.items()}

    @wraps(command)
    def answered(*, as_json: bool = False, quiet: bool = False, **words: Any) -> int:
        with _aside(as_json=as_json, quiet=quiet):
            answer = command(**{name: make(*(words[one.name] for one in of)) for name, (make, of) in asked.items()})
            if not as_json:
                answer.show()
        if as_json:
            print_document(command.__name__, answer.document())
        return answer.exit_code

    parameters = [parameter for _, of in asked.values() for parameter in of]
    added = [inspect.Parameter(name, _KEYWORD, default=False, annotation=kind) for name, kind in _OPTIONS.items()]
    answered.__signature__ = signature.replace(parameters=[*parameters, *added], return_annotation=int)  # type: ignore[attr-defined] # inspect reads it
    return answered


def _made_of(parameter: inspect.Parameter) -> tuple[Callable[..., Any], list[inspect.Parameter]]:
    """What makes the value of a command's parameter, and the options of which."""
    kind, *options = get_args(parameter.annotation) or [parameter.annotation]
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return (lambda word: word), [parameter.replace(kind=_KEYWORD)]
    hints = get_type_hints(kind)
    of = options[0] if options else {field.name: field.metadata["option"] for field in fields(kind)}
    made = [
        inspect.Parameter(name, _KEYWORD, default=getattr(kind, name), annotation=Annotated[hints[name], option])
        for name, option in of.items()
    ]
    return (lambda *words: kind(**dict(zip(of, words, strict=True)))), made


def print_document(command: str, document: Mapping[str, Any]) -> None:
    """Print what `command` found out, for programs."""
    whole = {"zerobench": __version__, "command": command, **document}
    print(json.dumps(plain_value(whole), indent=1, allow_nan=False))  # noqa: T201 -- what was asked for


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors (and --json's document).")]

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_OPTIONS = {"as_json": AsJson, "quiet": Quiet}


@contextmanager
def _aside(*, as_json: bool, quiet: bool) -> Iterator[None]:
    """Where what is printed meanwhile goes."""
    if quiet:
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
        ):
            yield  # errors are raised, and printed by app.py
    elif as_json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield
