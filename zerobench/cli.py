"""The command line: one verb a command. It is the only place that prints errors, each as one line, and exits with 2.

Every command imports what it needs when it runs, so that `zerobench --help` stands at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from zerobench import __version__
from zerobench.errors import UserError, nearest

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
    frontier: Annotated[
        str | None,
        typer.Option(metavar="AXIS", help="Measure the most that fits: model, micro-batch or sequence-length."),
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What a rank may take of its device; the GPU's memory.")
    ] = None,
) -> int:
    """Run a sweep, show its tables and say where the run lies."""
    from zerobench import cli_run

    request = cli_run.Request(
        sweep=sweep,
        sets=sets or [],
        only=only or [],
        repeats=repeats,
        resume=resume,
        reports=reports,
        hostfile=hostfile,
        frontier=frontier,
        capacity=capacity,
    )
    if frontier is not None or capacity is not None:
        from zerobench import cli_run_frontier

        return cli_run_frontier.run_frontier(request, dry_run=dry_run)
    return cli_run.list_trials(request) if dry_run else cli_run.run(request)


@app.command()
def plan(
    sweep: Annotated[
        str | None, typer.Argument(metavar="[SWEEP]", help="A sweep to predict, instead of stages and offloads.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A preset, a transformers config.json or a hub id.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="GPUs of all nodes.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Their name in the hardware catalogue: h200.")] = None,
    gpus_per_node: Annotated[str, typer.Option(metavar="N", help="GPUs of one node.")] = "8",
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Host memory of one node: 1TB.")] = None,
    host_bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="What that memory moves; two sockets of EPYC 9004 by default.")
    ] = "921.6GB/s",
    nvme: Annotated[
        str | None, typer.Option(metavar="RATE", help="What the NVMe drives of one node read: 7GB/s.")
    ] = None,
    micro_batch: Annotated[str | None, typer.Option(metavar="N", help="Sequences a GPU and pass (1).")] = None,
    gradient_accumulation: Annotated[str | None, typer.Option(metavar="N", help="Passes a step (1).")] = None,
    sequence_length: Annotated[str | None, typer.Option(metavar="N", help="Tokens a sequence (2048).")] = None,
    precision: Annotated[str | None, typer.Option(metavar="NAME", help="bf16 (default), fp16 or fp32.")] = None,
    activation_checkpointing: Annotated[
        bool, typer.Option("--activation-checkpointing", help="Keep each layer's input alone, compute the rest again.")
    ] = False,
    stage: Annotated[str | None, typer.Option(metavar="N,...", help="Only these ZeRO stages.")] = None,
    ds_config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Predict this DeepSpeed configuration of your own.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(metavar="N", help="How long so many take at least: 300B.")] = None,
    frontier: Annotated[
        str | None, typer.Option(metavar="AXIS", help="The most that fits: model, micro-batch or sequence-length.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the recommended DeepSpeed configuration.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="AXIS=VALUE,...", help="Replace an axis of SWEEP.")
    ] = None,
    reports: Reports = Path("reports"),
) -> int:
    """Predict what fits and how fast it can be at best, before anybody has the GPUs."""
    from zerobench import cli_plan

    request = cli_plan.Request(
        sweep=sweep,
        model=model,
        gpus=gpus,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        host_memory=host_memory,
        host_bandwidth=host_bandwidth,
        nvme=nvme,
        micro_batch=micro_batch,
        gradient_accumulation=gradient_accumulation,
        sequence_length=sequence_length,
        precision=precision,
        activation_checkpointing=activation_checkpointing,
        stage=stage,
        ds_config=ds_config,
        write=write,
        tokens=tokens,
        frontier=frontier,
        sets=sets or [],
        reports=reports,
    )
    return cli_plan.plan(request)


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder or its name; the newest one.")] = None,
    reports: Reports = Path("reports"),
) -> None:
    """Show the tables of a run."""
    from rich.console import Console

    from zerobench.report.terminal import show_run
    from zerobench.store import find_run

    show_run(find_run(run, reports), Console(highlight=False))


@app.command()
def validate(
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
    worlds: Annotated[
        str | None, typer.Option("--worlds", metavar="WORLD,...", help="Of solo, simulated, formula; all of them.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Start nothing: read an earlier run that has both.")
    ] = None,
    reports: Reports = Path("reports"),
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the tables as Markdown too.")
    ] = None,
) -> int:
    """Run a sweep measured and predicted, and print how far the predictions are off."""
    from zerobench import cli_validate

    return cli_validate.validate(
        cli_validate.Request(
            sweep=sweep,
            sets=sets or [],
            only=only or [],
            worlds=worlds,
            run=run,
            reports=reports,
            markdown=markdown,
        )
    )


@app.command()
def calibrate(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder or its name; the newest one.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The calibration file to write.")] = Path(
        "calibration.yaml"
    ),
    reports: Reports = Path("reports"),
) -> None:
    """Write what a run on GPUs measured beside the tensors: CUDA context, NCCL, host process."""
    from zerobench.report.calibrate import write_calibration
    from zerobench.spec.overheads import CALIBRATION_VARIABLE
    from zerobench.store import find_run

    calibration = write_calibration(find_run(run, reports), out)
    for entry in calibration.gpus:
        typer.echo(f"{entry.gpu}, {entry.world_size} ranks: from {entry.num_ranks} rank records")
    typer.echo(f"\nPredictions use it with: export {CALIBRATION_VARIABLE}={out.resolve()}")


@app.command()
def sweeps() -> None:
    """List the shipped sweeps."""
    from zerobench.spec.sweep import load_sweep, shipped_sweeps

    paths = shipped_sweeps()
    for name in paths:
        typer.echo(f"{name:<14}{_first_sentence(load_sweep(name).description)}")
    typer.echo(f"\nTheir files lie in {next(iter(paths.values())).parent}")


@app.command()
def models(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A preset, a config.json or a hub id: its components.")
    ] = None,
) -> None:
    """List the model presets with their exact parameter counts, or one model's by component."""
    from zerobench.spec.presets import PRESETS

    if model is not None:
        _list_components(model)
        return
    typer.echo(f"{'model':<14}{'parameters':>16}{'layers':>8}{'hidden':>8}{'heads':>7}{'vocabulary':>12}")
    for name in PRESETS:
        typer.echo(_preset_line(name))


def _preset_line(name: str) -> str:
    from zerobench.spec.architecture import dimensions
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import resolve_model

    spec = resolve_model(name)
    size, counts = dimensions(spec), count_parameters(spec)
    total = f"{counts.total:,}" if counts else "-"
    return f"{name:<14}{total:>16}{size.num_layers:>8}{size.hidden_size:>8}{size.num_heads:>7}{size.vocab_size:>12,}"


def _list_components(model: str) -> None:
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import resolve_model

    spec = resolve_model(model)
    counts = count_parameters(spec)
    if counts is None:
        raise UserError(f"MODEL: {model}: no closed form is known for {spec.model_type}; a trial counts its parameters")
    for name, count in {**counts.by_component(), "total": counts.total}.items():
        typer.echo(f"{name:<24}{count:>18,}")


def _first_sentence(text: str) -> str:
    words = " ".join(text.split())
    return words.partition(". ")[0].rstrip(".")
