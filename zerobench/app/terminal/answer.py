"""Output of a command: tables for people, one JSON document for programs.

A command returns an `Answer`; `answering` adds `--json` and `--quiet` and prints the one requested. Under `--json` only
the document goes to standard output; progress and notes go to standard error.
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


def shortest(path: Path) -> Path:
    """Return `path` relative to the current folder if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _nothing() -> None:
    """Default of `Answer.show`, for commands that print while they work."""


@dataclass(frozen=True)
class Answer:
    """Result of a command."""

    document: Callable[[], Mapping[str, Any]]
    """JSON document; fields.py describes its fields."""
    show: Callable[[], object] = _nothing
    """Prints the result for people; does nothing if the command printed everything while it worked."""
    exit_code: int = 0


def answering(command: Callable[..., Answer]) -> Callable[..., int]:
    """Add the options `--json` and `--quiet` to `command`, which then returns its exit status.

    A parameter that is a dataclass gets an option for each field: from the field's metadata, or from the mapping that
    annotates the parameter.
    """
    signature = inspect.signature(command, eval_str=True)
    constructors = {name: _constructor(parameter) for name, parameter in signature.parameters.items()}

    @wraps(command)
    def run(*, as_json: bool = False, quiet: bool = False, **values: Any) -> int:
        with _redirected_output(as_json=as_json, quiet=quiet):
            answer = command(
                **{name: make(*(values[one.name] for one in of)) for name, (make, of) in constructors.items()}
            )
            if not as_json:
                answer.show()
        if as_json:
            print_document(command.__name__, answer.document())
        return answer.exit_code

    parameters = [parameter for _, of in constructors.values() for parameter in of]
    common = [inspect.Parameter(name, _KEYWORD, default=False, annotation=kind) for name, kind in _OPTIONS.items()]
    run.__signature__ = signature.replace(parameters=[*parameters, *common], return_annotation=int)  # type: ignore[attr-defined] # inspect reads it
    return run


def _constructor(parameter: inspect.Parameter) -> tuple[Callable[..., Any], list[inspect.Parameter]]:
    """Return the constructor of a command parameter and the options that supply its arguments."""
    kind, *options = get_args(parameter.annotation) or [parameter.annotation]
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return (lambda word: word), [parameter.replace(kind=_KEYWORD)]
    hints = get_type_hints(kind)
    of = options[0] if options else {field.name: field.metadata["option"] for field in fields(kind)}
    parameters = [
        inspect.Parameter(name, _KEYWORD, default=getattr(kind, name), annotation=Annotated[hints[name], option])
        for name, option in of.items()
    ]
    return (lambda *words: kind(**dict(zip(of, words, strict=True)))), parameters


def print_document(command: str, document: Mapping[str, Any]) -> None:
    """Print the JSON document of `command`."""
    envelope = {"zerobench": __version__, "command": command, **document}
    print(json.dumps(plain_value(envelope), indent=1, allow_nan=False))  # noqa: T201 -- what was asked for


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors (and --json's document).")]

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_OPTIONS = {"as_json": AsJson, "quiet": Quiet}


@contextmanager
def _redirected_output(*, as_json: bool, quiet: bool) -> Iterator[None]:
    """Redirect everything printed meanwhile: to nowhere if `quiet`, to standard error if `as_json`."""
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
