"""`zerobench explain`: the causes of a trial's memory and time, or of a difference between two trials."""

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.terminal import completion
from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import PLAN
from zerobench.app.terminal.requests import ExplainRequest

_LOG = {
    "model": typer.Option(
        metavar="MODEL", help="For a log: the model; predicts changes that fit.", autocompletion=completion.models
    ),
    "ds_config": typer.Option(metavar="FILE", help="For a log: its DeepSpeed configuration."),
    "gpus": typer.Option(metavar="N", help="For a log: total number of GPUs."),
    "gpu": typer.Option(
        metavar="NAME", help="For a log: GPU, as in `zerobench models --gpus`.", autocompletion=completion.gpus
    ),
    "gpus_per_node": typer.Option(metavar="N", help="For a log: GPUs per node."),
    "host_memory": typer.Option(metavar="SIZE", help="For a log: host memory per node."),
    "micro_batch": typer.Option(metavar="N", help="For a log: micro-batch size per GPU."),
    "sequence_length": typer.Option(metavar="N", help="For a log: sequence length."),
    "gradient_accumulation": typer.Option(metavar="N", help="For a log: gradient accumulation steps."),
    "activation_checkpointing": typer.Option(
        "--activation-checkpointing", help="For a log: it recomputes activations."
    ),
    "lora": typer.Option(
        metavar="RANK", help="For a log: rank of the LoRA adapters that it trains; in 4 bits: 16-nf4."
    ),
    "reports": PLAN["reports"],
}


@answering
def explain(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|LOG",
            help="Run folder or name; two of RUN:TRIAL; or the log of any training.",
            autocompletion=completion.runs,
        ),
    ],
    options: ExplainRequest,
    log: Annotated[PlanRequest, _LOG],
) -> Answer:
    """Explain why a trial takes its memory and time. Also two trials' difference, or an out-of-memory log."""
    from zerobench.app.terminal.explain import explain

    return explain(run, options, log)
