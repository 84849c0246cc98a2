"""`zerobench export`: the records of a run for the tools that people already look at their training with."""

from pathlib import Path
from typing import Annotated

import typer

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Reports, RunName


@answering
def export(
    run: RunName = None,
    prometheus: Annotated[
        Path | None,
        typer.Option("--prometheus", metavar="FILE", help=".prom file for node_exporter's textfile collector."),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="DIR", help="TensorBoard log folder, one run per trial.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option("--wandb", metavar="PROJECT", help="Weights & Biases project; WANDB_MODE applies.")
    ] = None,
    step_timeline: Annotated[
        Path | None,
        typer.Option("--step-timeline", metavar="FILE", help="Streams over each expected step, for ui.perfetto.dev."),
    ] = None,
    memory_viz: Annotated[
        Path | None,
        typer.Option(
            "--memory-viz", metavar="DIR", help="Memory by category for pytorch.org/memory_viz, a file a trial."
        ),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option("--perfetto", metavar="FILE", help="Memory by category and phases for ui.perfetto.dev."),
    ] = None,
    reports: Reports = REPORTS,
) -> Answer:
    """Export a run to other tools. Prometheus, TensorBoard, Weights & Biases, torch's memory_viz, Perfetto."""
    destinations = {name.replace("_", "-"): to for name, to in locals().items() if name not in {"run", "reports"}}
    from zerobench.cli.export import export

    done = []
    for line in export(run, reports, destinations):
        typer.echo(line)
        done.append(line)
    return Answer(lambda: {"exported": done})
