"""`zerobench export`: a run's records in the formats of other tools."""

import typer

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.requests import ExportRequest


@answering
def export(request: ExportRequest) -> Answer:
    """Export a run to other tools. Prometheus, TensorBoard, Weights & Biases, torch's memory_viz, Perfetto."""
    from zerobench.app.terminal.export import export

    done = []
    for line in export(request):
        typer.echo(line)
        done.append(line)
    return Answer(lambda: {"exported": done})
