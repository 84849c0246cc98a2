"""`zerobench strategies`: the strategies, their requirements, and their availability here."""

from typing import Annotated

import typer

from zerobench.app.terminal import completion
from zerobench.app.terminal.answer import Answer, answering


@answering
def strategies(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Strategy or optimizer: all about it.", autocompletion=completion.strategies
        ),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show needs, evidence, axes, losses and checkpoints of each.")
    ] = False,
) -> Answer:
    """List strategies and optimizers, and which can run here."""
    from zerobench.app.terminal.strategies import brief, listing, plain_values
    from zerobench.launch.machine.this_machine import detect_machine
    from zerobench.report.documents.terminal import screen_width

    machine = detect_machine()
    is_brief = name is None and not details
    text = "\n".join(brief(machine, screen_width())) if is_brief else listing(machine, name)
    return Answer(lambda: plain_values(machine, name), lambda: typer.echo(text))
