"""`zerobench models`: presets, and one model by component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from zerobench.app.terminal import completion
from zerobench.app.terminal.answer import Answer, answering
from zerobench.common.errors import UserError

_HEADERS = {
    "model": "model",
    "family": "family",
    "parameters": "parameters",
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_heads",
    "vocabulary": "vocab_size",
    "context": "max_positions",
}
_GPU_HEADERS = {
    "GPU": "gpu",
    "NVML GiB": "memory_gib",
    "CUDA GiB": "usable_gib",
    "CUDA's from": "usable_from",
    "bf16 TFLOP/s": "bf16_tflops",
    "memory GB/s": "memory_gb_per_s",
    "link": "link",
    "link GB/s": "link_gb_per_s",
}


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
    gpus: Annotated[bool, typer.Option("--gpus", help="List the GPUs of the hardware catalogue instead.")] = False,
) -> Answer:
    """List model presets, or one model's components. With exact parameter counts."""
    from zerobench.config.models.presets import PRESETS

    if gpus and model is not None:
        raise UserError(f"MODEL: {model!r} does not go with --gpus, which lists all GPUs; drop one of them")
    if gpus:
        return _gpus()
    if model is not None:
        return _components(model)
    rows = [_preset(name) for name in PRESETS]

    return Answer(lambda: {"models": rows}, lambda: _print("Presets", _HEADERS, rows))


def _preset(name: str) -> dict[str, Any]:
    from zerobench.config.models.architecture import dimensions
    from zerobench.config.models.parameters import num_parameters
    from zerobench.config.models.presets import family_of, resolve_model

    spec = resolve_model(name)
    facts = {"model": name, "family": family_of(name), "parameters": num_parameters(spec)} | asdict(dimensions(spec))
    return {field: facts[field] for field in _HEADERS.values()}


def _gpus() -> Answer:
    from zerobench.config.hardware.hardware import load_catalogue

    rows: list[dict[str, Any]] = [
        {"gpu": gpu.name, "memory_bytes": gpu.memory_bytes, "usable_memory_bytes": gpu.capacity_bytes}
        | {"usable_memory_rule": gpu.capacity_rule, "bf16_tflops": gpu.peak_tflops.get("bf16")}
        | {name: getattr(gpu, name) for name in ("memory_gb_per_s", "link", "link_gb_per_s")}
        for gpu in load_catalogue()
    ]
    return Answer(
        lambda: {"gpus": rows},
        lambda: _print(
            "GPUs",
            _GPU_HEADERS,
            [row | _sizes(row) for row in rows],
        ),
    )


def _sizes(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Device memory as table cells. NVML's total and CUDA's usable size differ by less than 1 GiB."""
    sizes = {"memory_gib": row["memory_bytes"], "usable_gib": row["usable_memory_bytes"]}
    source = "rule" if row["usable_memory_rule"] else "catalogue"
    return {
        **{name: None if size is None else f"{size / 2**30:.2f}" for name, size in sizes.items()},
        "usable_from": None if row["usable_memory_bytes"] is None else source,
    }


def _print(title: str, headers: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print `rows` as a table; `headers` maps each header to its field. A column is text if any of its cells is."""
    from zerobench.report.documents.terminal import print_parts
    from zerobench.report.tables.model import Column
    from zerobench.report.tables.part import Listing, Part
    from zerobench.report.words.column_units import MISSING, show_whole

    def column(header: str, field: str) -> Column[Mapping[str, Any]]:
        is_text = any(isinstance(row[field], str) for row in rows)
        return Column(
            header,
            lambda row: (row[field] or MISSING) if is_text else show_whole(row[field]),
            narrow=header,
            is_text=is_text,
        )

    print_parts([Part(title, table=Listing([column(header, field) for header, field in headers.items()], rows))])


def _components(model: str) -> Answer:
    from zerobench.config.models.parameters import count_parameters
    from zerobench.config.models.presets import resolve_model

    spec = resolve_model(model)
    counts = count_parameters(spec)
    if counts is None:
        raise UserError(f"MODEL: {model}: no closed form is known for {spec.model_type}; a trial counts its parameters")
    components = {**counts.component_counts(), "total": counts.total}

    def show() -> None:
        for name, count in components.items():
            typer.echo(f"{name.replace('_', ' '):<24}{count:>18,}{count / counts.total:>8.1%}")

    return Answer(lambda: {"model": model, "components": components}, show)
