"""`zerobench tune`: the fastest configuration that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.terminal import completion
from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import GPU, GPUS, PLAN

_PLAN_OPTIONS = (
    "global_batch tokens_per_step gpus_per_node host_memory host_bandwidth nvme blocks sequence_length precision lora "
    "stage tokens price evidence write write_for fine_tune"
)
_TUNE = {
    **{name: PLAN[name] for name in _PLAN_OPTIONS.split()},
    "measure": typer.Option(metavar="N", min=1, help="Measure the N best on this machine, and take the fastest."),
    "details": PLAN["details"],
    "python": PLAN["python"],
    "reports": PLAN["reports"],
}


@answering
def tune(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Preset, transformers config.json or hub id.", autocompletion=completion.models
        ),
    ],
    gpus: GPUS,
    gpu: GPU,
    request: Annotated[PlanRequest, _TUNE],
) -> Answer:
    """Find the fastest configuration at a global batch. Varies stage, offload, micro batch, checkpointing and keys."""
    from zerobench.app.terminal.planning import plan

    return plan(replace(request, model=model, gpus=gpus, gpu=gpu, tunes=True))
