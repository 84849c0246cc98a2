"""`zerobench emulate`: run the user's own command on emulated GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import GPU, GPUS, PLAN, REPORTS, PythonPath, Reports
from zerobench.config.hardware.usual_node import GPUS_PER_NODE


@answering
def emulate(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Command to run, as on the cluster.")],
    gpus: GPUS,
    gpu: GPU,
    gpus_per_node: Annotated[str, PLAN["gpus_per_node"]] = str(GPUS_PER_NODE),
    host_memory: Annotated[str | None, PLAN["host_memory"]] = None,
    ranks: Annotated[str, typer.Option(metavar="N,...", help="Ranks to run: 0,last or all.")] = "0",
    steps: Annotated[str, typer.Option(metavar="N", help="Stop the script after this many optimizer steps.")] = "3",
    tries: Annotated[
        bool, typer.Option("--tries/--no-tries", help="If it does not fit, try changes that make it fit.")
    ] = True,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Run name (the script's).")] = None,
    python: PythonPath = None,
    reports: Reports = REPORTS,
) -> Answer:
    """Check whether your own script fits GPUs you do not have. The script is not modified.

    One rank at a time runs on an emulated GPU: torch's own CUDA build, no values computed.

    Exits with 0 if it fits, 1 if not, or the script's own status if that failed.
    """
    arguments = {name: value for name, value in locals().items() if name != "python"}
    from zerobench.app.terminal import emulate
    from zerobench.launch.emulate.request import read_request

    return emulate.emulate_command(read_request(**arguments))
