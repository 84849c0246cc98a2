"""`zerobench setup`: make the environment of its own that a strategy, or the emulated GPU, needs."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def setup(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The environment: horovod, tensorflow or emulator.")],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Where environments lie; ZEROBENCH_ENVIRONMENTS, or user data."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Compilers at a time.")] = 1,
) -> None:
    """Make the environment that a strategy or emulated GPU needs. Or go on where that was left."""
    from zerobench.run.environments import set_up

    set_up(name, folder, typer.echo, jobs)
