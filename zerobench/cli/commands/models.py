"""`zerobench models`: presets, and one model by component."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.errors import UserError


def models(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A preset, a config.json or a hub id: its components.")
    ] = None,
) -> None:
    """List the model presets with their exact parameter counts, or one model's by component."""
    from zerobench.spec.presets import PRESETS

    if model is not None:
        _list_components(model)
        return
    typer.echo(f"{'model':<14}{'parameters':>16}{'layers':>8}{'hidden':>8}{'heads':>7}{'vocabulary':>12}")
    for name in PRESETS:
        typer.echo(_preset_line(name))


def _preset_line(name: str) -> str:
    from zerobench.spec.architecture import dimensions
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import resolve_model

    spec = resolve_model(name)
    size, counts = dimensions(spec), count_parameters(spec)
    total = f"{counts.total:,}" if counts else "-"
    return f"{name:<14}{total:>16}{size.num_layers:>8}{size.hidden_size:>8}{size.num_heads:>7}{size.vocab_size:>12,}"


def _list_components(model: str) -> None:
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import resolve_model

    spec = resolve_model(model)
    counts = count_parameters(spec)
    if counts is None:
        raise UserError(f"MODEL: {model}: no closed form is known for {spec.model_type}; a trial counts its parameters")
    for name, count in {**counts.by_component(), "total": counts.total}.items():
        typer.echo(f"{name:<24}{count:>18,}")
