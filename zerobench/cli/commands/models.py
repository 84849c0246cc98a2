"""`zerobench models`: presets, and one model by component."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from zerobench.cli import completion
from zerobench.cli.answer import Answer, answering
from zerobench.errors import UserError


@answering
def models(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Preset, config.json or hub id: parameters by component.",
            autocompletion=completion.models,
        ),
    ] = None,
) -> Answer:
    """List model presets, or one model's components. With exact parameter counts."""
    from zerobench.spec.presets import PRESETS

    if model is not None:
        return _components(model)
    rows = [_preset(name) for name in PRESETS]

    return Answer(lambda: {"models": rows}, lambda: _print_presets(rows))


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


def _print_presets(rows: Sequence[Mapping[str, Any]]) -> None:
    from zerobench.report.column_units import show_whole
    from zerobench.report.render.terminal import print_parts
    from zerobench.report.tables.model import Column
    from zerobench.report.tables.part import Listing, Part

    def column(header: str, field: str) -> Column[Mapping[str, Any]]:
        is_text = field in {"model", "family"}
        return Column(
            header, lambda row: row[field] if is_text else show_whole(row[field]), narrow=header, is_text=is_text
        )

    headers = ["model", "family", "parameters", "layers", "hidden", "heads", "vocabulary", "context"]
    print_parts([Part("Presets", table=Listing([*map(column, headers, rows[0])], rows))])


def _components(model: str) -> Answer:
    from zerobench.spec.parameters import count_parameters
    from zerobench.spec.presets import resolve_model

    spec = resolve_model(model)
    counts = count_parameters(spec)
    if counts is None:
        raise UserError(f"MODEL: {model}: no closed form is known for {spec.model_type}; a trial counts its parameters")
    components = {**counts.by_component(), "total": counts.total}

    def show() -> None:
        for name, count in components.items():
            typer.echo(f"{name.replace('_', ' '):<24}{count:>18,}{count / counts.total:>8.1%}")

    return Answer(lambda: {"model": model, "components": components}, show)
