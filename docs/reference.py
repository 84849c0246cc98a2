"""The reference pages, made from the code: what an axis, a category, a column or a command is stands there alone."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import typer

from zerobench.app.terminal import fields
from zerobench.app.terminal.app import app
from zerobench.common.vocabulary import Category
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.hardware.hardware import load_catalogue
from zerobench.config.models.architecture import dimensions
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import PRESETS, family_of, resolve_model
from zerobench.config.sweep import sweep
from zerobench.report.export import schema


def pages() -> dict[str, str]:
    """The name of each page of the reference and its Markdown."""
    return {
        "sweep-files": _sweep_files(),
        "strategies": _strategies(),
        "categories": _categories(),
        "columns": _columns(),
        "commands": _commands(),
        "json": _json(),
        "models": _models(),
        "gpus": _gpus(),
    }


def table(columns: list[str], rows: list[list[object]], right: tuple[int, ...] = ()) -> str:
    """A table of Markdown; `right` are the columns of numbers."""
    rule = ["---:" if at in right else "---" for at in range(len(columns))]
    lines = [columns, rule, *([str(cell).replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def member_words(kind: type[StrEnum]) -> dict[str, str]:
    """What stands under each member of an enum, which Python does not keep."""
    words: dict[str, str] = {}
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined] # a class
    for before, after in itertools.pairwise(body):
        match before, after:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                words[kind[name].value] = " ".join(text.split())
    return words


def _sweep_files() -> str:
    example, _, rest = (sweep.__doc__ or "").partition("\n\n`model` and `strategy`")
    lead, _, document = example.partition("\n\n")
    return f"# Sweep files\n\n{lead}\n\n{document}\n\n`model` and `strategy`{rest}\n"


def _strategies() -> str:
    rows: list[list[object]] = [
        [f"`{info.name}`", info.summary, ", ".join(info.evidences), info.checkpoint or "none"]
        for info in STRATEGIES.values()
    ]
    lead = "What each needs, and whether it can run on a machine, is said there by `zerobench strategies`."
    return f"# Strategies\n\n{lead}\n\n{table(['strategy', 'what it is', 'worlds', 'checkpoint by'], rows)}\n"


def _categories() -> str:
    words = member_words(Category)
    rows: list[list[object]] = [[f"`{category}`", words[category]] for category in Category]
    return f"# Memory categories\n\n{inspect.getdoc(Category)}\n\n{table(['category', 'what it is'], rows)}\n"


def _columns() -> str:
    parts = [f"# Columns\n\n{inspect.getdoc(schema)}"]
    for name in ("MEMORY", "TRIALS", "ERRORS", "NVML"):
        columns = getattr(schema, name, None)
        if columns is not None:
            own: list[list[object]] = [[f"`{column}`", kind] for column, kind in columns.items()]
            parts.append(f"## {name.lower()}\n\n{table(['column', 'type'], own)}")
    return "\n\n".join(parts) + "\n"


def _commands() -> str:
    group = typer.main.get_command(app)
    context: Any = group.make_context("zerobench", [], resilient_parsing=True)
    parts = ["# Commands", _help(group, context)]
    for name in group.list_commands(context):  # type: ignore[attr-defined] # the app is a group
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        parts.append(f"## {name}\n\n{_help(command, type(context)(command, info_name=f'zerobench {name}'))}")
    return "\n\n".join(parts) + "\n"


def _json() -> str:
    lead = "What `--json` prints, one document a command. `zerobench report --json` writes that of `show`."
    parts = [f"# JSON documents\n\n{lead}\n\n{inspect.getdoc(fields)}", _field_table(fields.EVERY)]
    parts += [f"## {command}\n\n{_field_table(found)}" for command, found in fields.FIELDS.items()]
    return "\n\n".join(parts) + "\n"


def _field_table(found: Mapping[str, fields.Field]) -> str:
    return table(["field", "kind", "what it is"], [[f"`{path}`", one.kind, one.words] for path, one in found.items()])


def _help(command: Any, context: Any) -> str:
    return f"```text\n{command.get_help(context)}\n```"


def _models() -> str:
    rows = [_model_row(name) for name in PRESETS]
    columns = ["model", "family", "parameters", "layers", "hidden", "heads", "vocabulary", "context"]
    lead = "Presets; a `config.json` of transformers, a hub id or a shape written out may stand for one."
    return f"# Model presets\n\n{lead}\n\n{table(columns, rows, right=(2, 3, 4, 5, 6, 7))}\n"


def _model_row(name: str) -> list[object]:
    spec = resolve_model(name)
    size, counts = dimensions(spec), count_parameters(spec)
    numbers = (size.num_layers, size.hidden_size, size.num_heads, size.vocab_size, size.max_positions)
    return [
        f"`{name}`",
        family_of(name),
        counts and f"{counts.total:,}",
        *("" if number is None else f"{number:,}" for number in numbers),
    ]


def _gpus() -> str:
    rows = list(_gpu_rows())
    columns = ["GPU", "memory, GiB", "bf16, TFLOP/s", "memory, GB/s", "link", "source"]
    lead = "GPUs that a prediction may be about, as their makers specify them: dense rates, memory as NVML counts it."
    return f"# GPUs\n\n{lead}\n\n{table(columns, rows, right=(1, 2, 3))}\n"


def _gpu_rows() -> Iterator[list[object]]:
    for gpu in load_catalogue():
        memory = "" if gpu.memory_bytes is None else f"{gpu.memory_bytes / 2**30:.2f}"
        rate = gpu.peak_tflops.get("bf16", "")
        yield [gpu.name, memory, rate, gpu.memory_gb_per_s or "", gpu.link or "", gpu.source]
