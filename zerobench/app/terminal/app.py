"""Joins the commands and starts them. It is the only place that prints errors, each as one line, and exits with 2.

Every command imports what it needs when it runs, so that `zerobench --help` stands at once.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import Annotated, Any, NoReturn

import typer

from zerobench import __version__
from zerobench.app.terminal.help import GROUPS, GroupedCommands, epilog
from zerobench.common.errors import UserError, unknown_choice
from zerobench.common.file_errors import WORKING_DIRECTORY_GONE, failure_of, is_working_directory_gone

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of what typer raises for a wrong command line; it exports only this subclass, and where the base lies
differs between its versions."""

app = typer.Typer(
    name="zerobench",
    help="Memory and speed of DeepSpeed ZeRO training, measured and predicted: where every byte goes.",
    epilog="Begin with: zerobench run quickstart",
    cls=GroupedCommands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 1 where a trial failed, 2 for a mistake of the user's, 130 when stopped.

    141 where nobody reads what is printed any more, without a word, as a shell shows a program ended by SIGPIPE.
    """
    _open_what_is_closed()
    try:
        _refuse_bytes(sys.argv[1:] if arguments is None else arguments)
        code = app(args=arguments, prog_name="zerobench", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        code = _complain(_in_no_working_directory(str(error)))
    except _UsageError as error:
        code = _complain(_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except SystemExit as left:  # how typer and rich leave where a pipe is closed
        code = 141 if isinstance(left.__context__, BrokenPipeError) else left.code
    except BrokenPipeError:
        code = 141
    except OSError as error:
        code = _complain(_failed_operation(error))
    except MemoryError:
        code = _complain("out of host memory; check ulimit -v, the cgroup limit and free memory")
    _let_go_of_output()
    sys.exit(code if isinstance(code, int) else 0)


def _in_no_working_directory(message: str) -> str:
    """The message, behind what explains why relative paths lead nowhere."""
    if message.startswith(WORKING_DIRECTORY_GONE) or not is_working_directory_gone():
        return message
    return f"{WORKING_DIRECTORY_GONE}; {message}"


def _failed_operation(error: OSError) -> str:
    """Which file, why, and what to do. Python names none where printing failed, which then fails once more."""
    if error.filename is None:
        try:
            sys.stdout.flush()
        except OSError as output:
            return f"standard output (redirect it to where there is room): {output.strerror}"
    return failure_of(error)


def _open_what_is_closed() -> None:
    """Lead a standard stream that is closed to nowhere; else the next file that is opened would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """Raises UserError for an argument that no record and no page can hold."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"{argument!a}: not valid UTF-8") from None


def _let_go_of_output() -> None:
    """Print what is still buffered, or let it go: the interpreter would fail at it once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _complain(message: str) -> int:
    print(f"zerobench: {' '.join(message.splitlines())}", file=sys.stderr)  # noqa: T201 -- the one place for errors
    return 2


def _usage(error: Any) -> str:
    """What is wrong with the command line, with the nearest command where one was mistyped."""
    refused = _refused(error)
    if refused is not None:
        return refused
    message = str(error.format_message()).rstrip(".")
    if message.startswith("Missing"):
        return f"{message.split(chr(39))[1]} is missing"
    if message.startswith("No such option"):
        close = " or ".join(error.possibilities or ())
        return f"{error.option_name}: no such option{f'; did you mean {close}?' if close else ''}"
    commands = list(getattr(error.ctx.command if error.ctx else None, "commands", {}))
    if not message.startswith("No such command") or "Did you mean" in message:
        return message
    return str(unknown_choice("COMMAND", message.split("'")[1], commands, "zerobench --help"))


def _refused(error: Any) -> str | None:
    """The option, its value and what it should be, where its type refused it.

    Typer's message names no value: it stands in the error of pydantic, by which typer reads options, behind it.
    """
    faults = getattr(error.__context__, "errors", None)
    parameter = getattr(error, "param", None)
    if faults is None or parameter is None:
        return None
    [fault, *_] = faults()
    should = str(fault["msg"]).partition(",")[0]
    return f"{parameter.opts[0]}: {str(fault['input'])!r}: {should[0].lower()}{should[1:]}"


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"zerobench {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 -- its callback does the work
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


DECLARED: Mapping[str, Callable[..., Any]] = {
    name: getattr(import_module(f"zerobench.app.commands.{name}"), name)
    for name in chain.from_iterable(GROUPS.values())
}
"""By name; help.py says which there are, under which heading and in which order."""

for _name, _command in DECLARED.items():
    app.command(_name, epilog=epilog(_name))(_command)


def commands() -> list[Any]:
    """The commands as typer makes them."""
    return list(typer.main.get_command(app).commands.values())  # type: ignore[attr-defined] # the app is a group
