"""`zerobench strategies`: the ways to train, what each needs, and whether it can run here."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

import typer


def strategies() -> None:
    """List strategies and optimizers: what each is and needs, whether it can run here, and what it keeps."""
    from zerobench.cli.optimizers import listing as optimizers
    from zerobench.cli.strategies import listing
    from zerobench.spec.machine import detect_machine

    typer.echo("\n".join([*listing(detect_machine()), *optimizers()]))
