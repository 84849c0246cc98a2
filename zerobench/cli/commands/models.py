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
    typer.echo(_line("model", "family", "parameters", "layers", "hidden", "heads", "vocabulary", "context"))
    for name in PRESETS:
        typer.echo(_preset_line(name))


def _preset_line(name: str) -> str:
    from zerobench.spec.architecture import dimensions
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import family_of, resolve_model

    spec = resolve_model(name)
    size, counts = dimensions(spec), count_parameters(spec)
    numbers = (size.num_layers, size.hidden_size, size.num_heads)
    context = "-" if size.max_positions is None else f"{size.max_positions:,}"
    total = "-" if counts is None else f"{counts.total:,}"
    return _line(name, family_of(name), total, *map(str, numbers), f"{size.vocab_size:,}", context)


def _line(name: str, family: str, total: str, *sizes: str) -> str:
    return f"{name:<16}{family:<9}{total:>16}" + "".join(
        f"{size:>{width}}" for size, width in zip(sizes, _WIDTHS, strict=True)
    )


_WIDTHS = (8, 8, 7, 12, 9)


def _list_components(model: str) -> None:
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import resolve_model

    spec = resolve_model(model)
    counts = count_parameters(spec)
    if counts is None:
        raise UserError(f"MODEL: {model}: no closed form is known for {spec.model_type}; a trial counts its parameters")
    for name, count in {**counts.by_component(), "total": counts.total}.items():
        typer.echo(f"{name:<24}{count:>18,}")
