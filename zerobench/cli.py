"""The command line: one verb a command. It is the only place that prints errors, each as one line, and exits with 2.

Every command imports what it needs when it runs, so that `zerobench --help` stands at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from zerobench import __version__
from zerobench.errors import UserError, nearest

if TYPE_CHECKING:
    from rich.console import Console

    from zerobench.cli_live import PlainView
    from zerobench.run.attempt import Site
    from zerobench.run.runner import RunResult
    from zerobench.spec.expand import PlannedTrial
    from zerobench.spec.machine import Machine
    from zerobench.spec.sweep import Sweep

# ruff: noqa: PLC0415 -- imports stand in the commands that need them: see above

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of what typer raises for a wrong command line; it exports only this subclass, and where the base lies
differs between its versions."""

app = typer.Typer(
    name="zerobench",
    help="Where every byte of a DeepSpeed ZeRO training run goes, and how fast it runs.",
    epilog="Begin with: zerobench run quickstart",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Reports = Annotated[Path, typer.Option("--reports", metavar="DIR", help="Where run folders lie.")]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 1 where a trial failed, 2 for a mistake of the user's, 130 when stopped."""
    try:
        code = app(args=arguments, prog_name="zerobench", standalone_mode=False)
    except UserError as error:
        code = _complain(str(error))
    except _UsageError as error:
        code = _complain(_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    print(f"zerobench: {' '.join(message.splitlines())}", file=sys.stderr)  # noqa: T201 -- the one place for errors
    return 2


def _usage(error: Any) -> str:
    """What is wrong with the command line, with the nearest command where one was mistyped."""
    message = str(error.format_message()).rstrip(".")
    commands = list(getattr(error.ctx.command if error.ctx else None, "commands", {}))
    if not message.startswith("No such command") or "Did you mean" in message:
        return message
    close = nearest(message.split("'")[1], commands, count=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{message}; {hint}choices: {', '.join(commands)}"


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


@app.command()
def run(
    sweep: Annotated[
        str | None, typer.Argument(metavar="SWEEP", help="A sweep file, or the name of a shipped one.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="AXIS=VALUE,...", help="Replace an axis of the sweep; may be repeated."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="AXIS=VALUE,...", help="Keep only these points; may be repeated."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", metavar="N", min=1, help="Run each trial N times.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trials and start none.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Run what is missing or failed in an earlier run.")
    ] = None,
    reports: Reports = Path("reports"),
    hostfile: Annotated[
        Path | None, typer.Option("--hostfile", metavar="FILE", help="The nodes, one `name slots=N` a line.")
    ] = None,
) -> int:
    """Run a sweep, show its tables and say where the run lies."""
    from zerobench.run.runner import refuse_other_plan
    from zerobench.store import find_run

    asked = _asked(sweep, sets or [], only or [], repeats)
    if asked is None and resume is None:
        raise _sweep_missing()
    machine = _machine(hostfile)
    planned = _plan(asked, machine) if asked else []
    earlier = find_run(resume, reports) if resume else None
    if earlier and asked:
        refuse_other_plan(earlier, planned)
    if dry_run:
        _list_trials(planned, earlier)
        return 0
    site = _site(machine, hostfile)
    result = _resume(earlier, site) if earlier else _run_new(asked, planned, reports, site)
    _show_result(result)
    return result.exit_code


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder or its name; the newest one.")] = None,
    reports: Reports = Path("reports"),
) -> None:
    """Show the tables of a run."""
    from zerobench.report.terminal import show_run
    from zerobench.store import find_run

    show_run(find_run(run, reports), _console())


@app.command()
def sweeps() -> None:
    """List the shipped sweeps."""
    from zerobench.spec.sweep import load_sweep, shipped_sweeps

    for name, path in shipped_sweeps().items():
        typer.echo(f"{name:<14}{_first_sentence(load_sweep(name).description)}")
        typer.echo(f"{'':<14}{path}")


@app.command()
def models() -> None:
    """List the model presets with their exact parameter counts."""
    from zerobench.spec.architecture import dimensions
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import PRESETS, resolve_model

    typer.echo(f"{'model':<14}{'parameters':>16}{'layers':>8}{'hidden':>8}{'heads':>7}{'vocabulary':>12}")
    for name in PRESETS:
        model = resolve_model(name)
        size, counts = dimensions(model), count_parameters(model)
        total = f"{counts.total:,}" if counts else "-"
        typer.echo(
            f"{name:<14}{total:>16}{size.num_layers:>8}{size.hidden_size:>8}{size.num_heads:>7}{size.vocab_size:>12,}"
        )


def _machine(hostfile: Path | None) -> Machine:
    from zerobench.run.launcher import read_hosts
    from zerobench.spec.machine import detect_machine

    return detect_machine(num_nodes=len(read_hosts(hostfile)) if hostfile else 1)


def _site(machine: Machine, hostfile: Path | None) -> Site:
    from zerobench.run.attempt import Site

    return Site(machine.cpu_cores, machine.num_gpus, hostfile.resolve() if hostfile else None)


def _asked(sweep: str | None, sets: Sequence[str], only: Sequence[str], repeats: int | None) -> Sweep | None:
    """The sweep that the command line names; None where it names none, as with `--resume` alone."""
    from zerobench.spec.sweep import load_sweep

    if sweep is not None:
        return load_sweep(sweep, sets, only, repeats)
    if sets or only or repeats is not None:
        raise UserError("SWEEP is missing: --set, --only and --repeats change a sweep, which must be named")
    return None


def _sweep_missing() -> UserError:
    from zerobench.spec.sweep import shipped_sweeps

    return UserError(f"SWEEP is missing: a sweep file, or one of the shipped: {', '.join(shipped_sweeps())}")


def _plan(sweep: Sweep, machine: Machine) -> list[PlannedTrial]:
    """The trials of `sweep` on `machine`; a config that DeepSpeed would not take is refused here already."""
    from zerobench.run.setup import resolved_configs
    from zerobench.spec.expand import expand

    planned = expand(sweep, machine)
    resolved_configs(planned)
    return planned


def _run_new(sweep: Sweep | None, planned: Sequence[PlannedTrial], reports: Path, site: Site) -> RunResult:
    from zerobench.run.environment import capture_environment
    from zerobench.run.runner import run_sweep

    if sweep is None:
        raise _sweep_missing()
    view = _view()
    if sweep.description:
        view.say(" ".join(sweep.description.split()))
    return run_sweep(
        planned,
        sweep_name=sweep.name,
        sweep=sweep.document,
        environment=capture_environment(),
        reports=reports,
        site=site,
        observer=view,
    )


def _resume(run: Path, site: Site) -> RunResult:
    from zerobench.run.environment import capture_environment
    from zerobench.run.runner import resume_run

    return resume_run(run, environment=capture_environment(), site=site, observer=_view())


def _list_trials(planned: Sequence[PlannedTrial], earlier: Path | None) -> None:
    """Each trial on a line: `run`, or why not: skipped with the rule and the reason, or completed in an earlier run."""
    from zerobench.run.runner import standing
    from zerobench.store import load_run

    if earlier is not None:
        for trial_id, kept in standing(load_run(earlier)):
            typer.echo(f"{kept or 'run':<10}{trial_id}")
        return
    for item in planned:
        why = f"  {item.skipped.rule}: {item.skipped.reason}" if item.skipped else ""
        typer.echo(f"{'skipped' if item.skipped else 'run':<10}{item.trial.trial_id}{why}")


def _view() -> PlainView:
    from zerobench.cli_live import LiveView, PlainView

    console = _console()
    return LiveView(console) if console.is_terminal else PlainView(console)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _show_result(result: RunResult) -> None:
    """The tables, then where the run lies and how to go on with it."""
    from zerobench.report.terminal import show_run

    path = os.path.relpath(result.folder.path)
    if not result.interrupted:
        show_run(result.folder.path, _console())
    typer.echo(f"run: {path}")
    if result.exit_code:
        typer.echo(f"go on with: zerobench run --resume {path}")


def _first_sentence(text: str) -> str:
    words = " ".join(text.split())
    return words.partition(". ")[0].rstrip(".")
