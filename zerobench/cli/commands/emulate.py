"""`zerobench emulate`: a command of the user's own on GPUs that are not there."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import GPU, GPUS, REPORTS, GpusPerNode, HostMemory, Reports


@answering
def emulate(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, as on the cluster.")],
    gpus: Annotated[str, GPUS],
    gpu: Annotated[str, GPU],
    gpus_per_node: GpusPerNode = "8",
    host_memory: HostMemory = None,
    ranks: Annotated[str, typer.Option(metavar="N,...", help="Which ranks play: 0,last or all.")] = "0",
    steps: Annotated[str, typer.Option(metavar="N", help="Optimizer steps, after which the script is ended.")] = "3",
    tries: Annotated[
        bool, typer.Option("--tries/--no-tries", help="Where it does not fit, try changes that make it fit.")
    ] = True,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The run's name; the script's.")] = None,
    reports: Reports = REPORTS,
) -> Answer:
    """See your own script's memory on GPUs you do not have. Not a line of it is changed.

    One rank at a time plays on an emulated GPU: torch's own CUDA build, nothing computed.

    Exits with 0 where it fits, 1 where it does not, and with the script's own status where that failed.
    """
    from zerobench.cli import emulate
    from zerobench.emulate.request import read_request

    request = read_request(
        command,
        gpus=gpus,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        host_memory=host_memory,
        ranks=ranks,
        steps=steps,
        name=name,
        reports=reports,
        tries=tries,
    )
    return emulate.emulate_command(request)
