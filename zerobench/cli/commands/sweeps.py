"""`zerobench sweeps`: the shipped sweeps."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

import typer


def sweeps() -> None:
    """List the shipped sweeps."""
    from zerobench.spec.sweep import load_sweep, shipped_sweeps

    paths = shipped_sweeps()
    width = max(map(len, paths)) + 2
    for name in paths:
        typer.echo(f"{name:<{width}}{_first_sentence(load_sweep(name).description)}")
    typer.echo(f"\nTheir files lie in {next(iter(paths.values())).parent}")


def _first_sentence(text: str) -> str:
    words = " ".join(text.split())
    return words.partition(". ")[0].rstrip(".")
