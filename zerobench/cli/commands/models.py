"""`zerobench models`: presets, and one model by component."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from typing import Annotated, Any

import typer

from zerobench.cli.answer import Answer, answering
from zerobench.errors import UserError


@answering
def models(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Preset, config.json or hub id: parameters by component.")
    ] = None,
) -> Answer:
    """List model presets, or one model's components. With exact parameter counts."""
    from zerobench.spec.presets import PRESETS

    if model is not None:
        return _components(model)
    rows = [_preset(name) for name in PRESETS]

    def show() -> None:
        typer.echo(_line("model", "family", "parameters", "layers", "hidden", "heads", "vocabulary", "context"))
        for row in rows:
            typer.echo(_preset_line(**row))

    return Answer(lambda: {"models": rows}, show)


def _preset(name: str) -> dict[str, Any]:
    from zerobench.spec.architecture import dimensions
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import family_of, resolve_model

    spec = resolve_model(name)
    size, counts = dimensions(spec), count_parameters(spec)
    return {
        "model": name,
        "family": family_of(name),
        "parameters": None if counts is None else counts.total,
        "num_layers": size.num_layers,
        "hidden_size": size.hidden_size,
        "num_heads": size.num_heads,
        "vocab_size": size.vocab_size,
        "max_positions": size.max_positions,
    }


def _preset_line(model: str, family: str, parameters: int | None, **sizes: int | None) -> str:
    shape = ["-" if size is None else str(size) for size in list(sizes.values())[:3]]
    counts = [
        "-" if size is None else f"{size:,}" for size in (parameters, sizes["vocab_size"], sizes["max_positions"])
    ]
    return _line(model, family, counts[0], *shape, *counts[1:])


def _line(name: str, family: str, total: str, *sizes: str) -> str:
    return f"{name:<16}{family:<9}{total:>16}" + "".join(
        f"{size:>{width}}" for size, width in zip(sizes, _WIDTHS, strict=True)
    )


_WIDTHS = (8, 8, 7, 12, 9)


def _components(model: str) -> Answer:
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import resolve_model

    spec = resolve_model(model)
    counts = count_parameters(spec)
    if counts is None:
        raise UserError(f"MODEL: {model}: no closed form is known for {spec.model_type}; a trial counts its parameters")
    found = {**counts.by_component(), "total": counts.total}

    def show() -> None:
        for name, count in found.items():
            typer.echo(f"{name:<24}{count:>18,}")

    return Answer(lambda: {"model": model, "components": found}, show)
