"""`zerobench strategies`: the ways to train, what each needs, and whether it can run here."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

import typer

from zerobench.cli.answer import Answer, answering


@answering
def strategies() -> Answer:
    """List strategies and optimizers, and which can run here. With requirements and states."""
    from zerobench.cli import optimizers
    from zerobench.cli.strategies import as_plain, listing
    from zerobench.spec.machine import detect_machine

    machine = detect_machine()
    return Answer(
        lambda: {"strategies": as_plain(machine), "optimizers": optimizers.as_plain()},
        lambda: typer.echo("\n".join([*listing(machine), *optimizers.listing()])),
    )
