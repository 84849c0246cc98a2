"""`zerobench setup`: create the separate environment of a strategy or of the emulated GPU."""

from pathlib import Path
from typing import Annotated

import typer

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import PythonPath


@answering
def setup(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Environment: horovod, tensorflow or emulator.")],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Folder of environments (ZEROBENCH_ENVIRONMENTS, or user data)."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Parallel compilers.")] = 1,
    python: PythonPath = None,  # noqa: ARG001 -- its callback does the work
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Download unchecked what no hashes are listed for.")
    ] = False,
) -> Answer:
    """Set up the environment of a strategy or of the emulated GPU. Resumes where it was interrupted."""
    from zerobench.launch.setup.environment_setup import set_up

    environment = set_up(name, folder, typer.echo, jobs, is_verified=not unverified)
    return Answer(lambda: {"environment": name, "folder": str(environment.path)})
