"""`zerobench strategies`: the ways to train, what each needs, and whether it can run here."""

from typing import Annotated

import typer

from zerobench.cli import completion
from zerobench.cli.answer import Answer, answering


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
    from zerobench.cli.strategies import as_plain, brief, listing
    from zerobench.report.render.terminal import screen_width
    from zerobench.running.this_machine import detect_machine

    machine = detect_machine()
    is_brief = name is None and not details
    text = "\n".join(brief(machine, screen_width())) if is_brief else listing(machine, name)
    return Answer(lambda: as_plain(machine, name), lambda: typer.echo(text))
