"""Join the commands and start them, with the groups and examples of their help. Only this module prints errors: one
line each, exit status 2.

Every command imports its dependencies when it runs, which keeps `zerobench --help` fast.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from zerobench import __version__
from zerobench.common.errors import UserError, unknown_choice
from zerobench.common.file_errors import WORKING_DIRECTORY_GONE, failure_of, is_working_directory_gone

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Predict": ("plan", "tune", "emulate"),
    "Measure": ("run", "watch", "submit", "status"),
    "Read": ("show", "explain", "report", "export"),
    "Compare": ("compare", "baseline", "validate"),
    "Prepare": ("doctor", "setup", "calibrate"),
    "List": ("models", "strategies", "sweeps"),
}
"""Commands by heading, in the order of the help."""

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "plan": (
        "plan --model llama-7b --gpus 8 --gpu h200 --host-memory 1TB --write ds_config.json",
        "plan --model llama-7b --gpus 8 --gpu h100 --ds-config my.json --json",
    ),
    "tune": ("tune llama-7b --gpus 8 --gpu h100 --host-memory 1TB --global-batch 256 --write ds.json",),
    "emulate": (
        "emulate --gpus 64 --gpu h200 --host-memory 1TB -- deepspeed train.py --deepspeed_config ds.json",
        "emulate --gpus 8 --gpu a100-40 -- torchrun --nproc-per-node 8 train.py",
    ),
    "run": (
        "run zero-stages",
        "run my.yaml --set micro_batch_size=1,2,4 --only strategy=zero2,zero3",
        "run --resume RUN",
    ),
    "watch": ("watch -- deepspeed train.py --deepspeed_config my.json",),
    "submit": ("submit zero-stages --nodes 4 --gpus-per-node 8 --dry-run",),
    "status": ("status --follow 10",),
    "show": ("show RUN", "show RUN --json"),
    "explain": ("explain RUN zero2 zero3",),
    "report": ("report RUN --markdown --out -",),
    "export": ("export RUN --prometheus zerobench.prom",),
    "compare": (
        "compare BASE NEW --fail-on memory:2%,speed:5%",
        "compare --against main --fail-on memory:2% --markdown pr.md",
    ),
    "baseline": ("baseline set main RUN", "baseline list"),
    "validate": ("validate quickstart --worlds simulated",),
    "doctor": ("doctor", "doctor --json"),
    "setup": ("setup emulator",),
    "calibrate": ("calibrate RUN --out calibration.yaml",),
    "models": ("models", "models llama-7b"),
    "strategies": ("strategies", "strategies zero3"),
    "sweeps": ("sweeps", "sweeps --json"),
}
"""Example arguments of each command, without the leading `zerobench`."""


def epilog(command: str) -> str | None:
    r"""Examples for the end of a command's help; `\b` stops click from rewrapping them."""
    lines = [f"  zerobench {line}" for line in EXAMPLES.get(command, ())]
    return "\n".join(["\b", "Examples:", *lines]) if lines else None


def _argument_usage(argument: Any, _: Any) -> list[str]:
    name = argument.metavar + ("" if argument.nargs == 1 or argument.metavar.endswith("...") else "...")
    return [name if argument.required else f"[{name}]"]


class GroupedCommands(TyperGroup):
    """Command group whose help lists the commands under the headings of `GROUPS`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command; its help names arguments without typer's types and braces."""
        command: Any = super().get_command(ctx, cmd_name)
        for parameter in command.params if command else ():
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda **_: None
                parameter.get_usage_pieces = partial(_argument_usage, parameter)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 -- click's signature
        """Write each group; a command's help is its first sentence."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Base class of typer's usage errors. typer exports only this subclass, and the base's module differs between versions.
"""

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
    """Run the command line and exit: 0, 1 if a trial failed, 2 for a user error, 130 when interrupted.

    141, without a message, if the reader of the output has gone: a shell's status of a program ended by SIGPIPE.
    """
    _open_closed_streams()
    try:
        _refuse_bytes(sys.argv[1:] if arguments is None else arguments)
        code = app(args=arguments, prog_name="zerobench", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        code = _complain(_explain_missing_cwd(str(error)))
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
    _drop_output()
    sys.exit(code if isinstance(code, int) else 0)


def _explain_missing_cwd(message: str) -> str:
    """The message, behind what explains why relative paths lead nowhere."""
    if message.startswith(WORKING_DIRECTORY_GONE) or not is_working_directory_gone():
        return message
    return f"{WORKING_DIRECTORY_GONE}; {message}"


def _failed_operation(error: OSError) -> str:
    """Name the file, the reason and the remedy."""
    if error.filename is None:
        # Python names no file if printing failed; flushing then fails again.
        try:
            sys.stdout.flush()
        except OSError as output:
            return f"standard output (redirect it to where there is room): {output.strerror}"
    return failure_of(error)


def _open_closed_streams() -> None:
    """Open closed standard streams on /dev/null."""
    # Otherwise the next file opened would get the stream's descriptor, and prints would go into it.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """Raise UserError for an argument that is not valid UTF-8, which no record or page can hold."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"{argument!a}: not valid UTF-8") from None


def _drop_output() -> None:
    """Print what is still buffered, or drop it."""
    # The interpreter flushes once more when it ends, and would print a traceback.
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
    """Word a usage error in one line, with the nearest command if one was mistyped."""
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
    """Name the option, its value and the expected type, if the type refused the value."""
    # Typer's message omits the value; the pydantic error behind it has it.
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
"""Commands by name, in the order of help.py."""

for _name, _command in DECLARED.items():
    app.command(_name, epilog=epilog(_name))(_command)


def commands() -> list[Any]:
    """Return the commands as typer builds them."""
    return list(typer.main.get_command(app).commands.values())  # type: ignore[attr-defined] # the app is a group
