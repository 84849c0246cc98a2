"""`zerobench explain`: why a trial took what it took, or why it differs from another."""

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.cli import completion
from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Reports


@answering
def explain(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|LOG",
            help="Run folder or name; two of RUN:TRIAL; or the log of any training.",
            autocompletion=completion.runs,
        ),
    ],
    trial: Annotated[
        str | None, typer.Argument(metavar="TRIAL", help="Trial name in the tables, id, or a prefix of either.")
    ] = None,
    other: Annotated[
        str | None, typer.Argument(metavar="TRIAL", help="Second trial; RUN:TRIAL for another run.")
    ] = None,
    changes: Annotated[
        bool,
        typer.Option("--changes", help="Predict changes that make the trial fit its GPUs, with their cost in time."),
    ] = False,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE,...",
            help="What a predicted step would take: link=2x, network=50GB/s, host-link, host-memory, nvme, gpu=NAME, "
            "batch=2x.",
        ),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show the arithmetic of each part, ranks, traffic and limits.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="For a log: the model; predicts changes that fit.", autocompletion=completion.models
        ),
    ] = None,
    ds_config: Annotated[
        str | None, typer.Option(metavar="FILE", help="For a log: its DeepSpeed configuration.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="For a log: total number of GPUs.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="For a log: GPU, as in `zerobench models --gpus`.", autocompletion=completion.gpus
        ),
    ] = None,
    gpus_per_node: Annotated[str, typer.Option(metavar="N", help="For a log: GPUs per node.")] = "8",
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="For a log: host memory per node.")] = None,
    micro_batch: Annotated[str | None, typer.Option(metavar="N", help="For a log: micro-batch size per GPU.")] = None,
    sequence_length: Annotated[str | None, typer.Option(metavar="N", help="For a log: sequence length.")] = None,
    reports: Reports = REPORTS,
) -> Answer:
    """Explain why a trial takes its memory and time. Also two trials' difference, or an out-of-memory log."""
    arguments = locals()
    from zerobench.cli.explain import explain, of_log

    request = of_log(trial, arguments)
    return explain(run, trial, other, reports, changes=changes, what_if=what_if, request=request, details=details)
