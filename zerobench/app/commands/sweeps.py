"""`zerobench sweeps`: the shipped sweeps."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from zerobench.app.terminal.answer import Answer, answering


@answering
def sweeps(
    axes: Annotated[bool, typer.Option("--axes", help="List the axes of a sweep file instead.")] = False,
) -> Answer:
    """List the shipped sweeps."""
    from zerobench.config.axes.axes import AXES, help_lines
    from zerobench.config.sweep.sweep import load_sweep, shipped_sweeps
    from zerobench.report.documents.terminal import screen_width

    if axes:
        rows = [{"axis": axis.name, "example": axis.example, "about": axis.help} for axis in AXES.values()]
        return Answer(lambda: {"axes": rows}, lambda: typer.echo("\n".join(["axes:", *help_lines(screen_width())])))

    paths = shipped_sweeps()
    sentences = {name: _first_sentence(load_sweep(name).description) for name in paths}

    def show() -> None:
        indent = " " * (max(map(len, paths)) + 2)
        for name, sentence in sentences.items():
            first = f"{name:<{len(indent)}}"
            typer.echo(textwrap.fill(sentence, screen_width(), initial_indent=first, subsequent_indent=indent))
        typer.echo(f"\nFiles: {next(iter(paths.values())).parent}")

    def document() -> dict[str, Any]:
        return {"sweeps": [{"sweep": name, "file": str(paths[name]), "about": sentences[name]} for name in paths]}

    return Answer(document, show)


def _first_sentence(text: str) -> str:
    words = " ".join(text.split())
    return words.partition(". ")[0].rstrip(".")
