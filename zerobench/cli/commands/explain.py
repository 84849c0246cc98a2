"""`zerobench explain`: why a trial took what it took, or why it differs from another."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Reports


@answering
def explain(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|LOG", help="A run folder or its name; RUN:TRIAL and a second one; or the log of any training."
        ),
    ],
    trial: Annotated[
        str | None, typer.Argument(metavar="[TRIAL]", help="Its name in the tables, its id, or the start of one.")
    ] = None,
    other: Annotated[
        str | None, typer.Argument(metavar="[TRIAL]", help="A second one, of another run as RUN:TRIAL.")
    ] = None,
    changes: Annotated[
        bool, typer.Option("--changes", help="Predict what makes the trial fit its GPUs, and what that costs in time.")
    ] = False,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE,...",
            help="What a predicted step would take: link=2x, network=50GB/s, host-link, host-memory, nvme, gpu=NAME.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Of a LOG: what was trained; predicts the changes that fit.")
    ] = None,
    ds_config: Annotated[str | None, typer.Option(metavar="FILE", help="Of a LOG: its DeepSpeed file.")] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="Of a LOG: GPUs of all nodes.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Of a LOG: their name in the catalogue.")] = None,
    gpus_per_node: Annotated[str, typer.Option(metavar="N", help="Of a LOG: GPUs of one node.")] = "8",
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Of a LOG: a node's memory.")] = None,
    micro_batch: Annotated[str | None, typer.Option(metavar="N", help="Of a LOG: sequences a pass.")] = None,
    sequence_length: Annotated[str | None, typer.Option(metavar="N", help="Of a LOG: tokens a sequence.")] = None,
    reports: Reports = REPORTS,
) -> Answer:
    """Say why a trial took what it took, or differs from another. Or what a log says of memory that ran out."""
    from zerobench.cli.explain import explain, of_log

    asked = of_log(
        trial,
        model=model,
        ds_config=ds_config,
        gpus=gpus,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        host_memory=host_memory,
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        reports=reports,
    )
    return explain(run, trial, other, reports, changes=changes, what_if=what_if, asked=asked)
