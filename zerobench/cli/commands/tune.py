"""`zerobench tune`: the fastest configuration that fits."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Reports


@answering
def tune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A preset, a transformers config.json or a hub id.")],
    gpus: Annotated[str, typer.Option(metavar="N", help="GPUs of all nodes.")],
    gpu: Annotated[str, typer.Option(metavar="NAME", help="Their name in the hardware catalogue: h200.")],
    global_batch: Annotated[str | None, typer.Option(metavar="N", help="Sequences a step.")] = None,
    tokens_per_step: Annotated[str | None, typer.Option(metavar="N", help="The same in tokens: 4M.")] = None,
    gpus_per_node: Annotated[str, typer.Option(metavar="N", help="GPUs of one node.")] = "8",
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Host memory of one node: 1TB.")] = None,
    host_bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="What that memory moves; two sockets of EPYC 9004 by default.")
    ] = "921.6GB/s",
    nvme: Annotated[
        str | None, typer.Option(metavar="RATE", help="What the NVMe drives of one node read: 7GB/s.")
    ] = None,
    sequence_length: Annotated[str | None, typer.Option(metavar="N", help="Tokens a sequence (2048).")] = None,
    precision: Annotated[str | None, typer.Option(metavar="NAME", help="bf16 (default), fp16 or fp32.")] = None,
    stage: Annotated[str | None, typer.Option(metavar="N,...", help="Only these ZeRO stages.")] = None,
    tokens: Annotated[str | None, typer.Option(metavar="N", help="How long so many take: 300B.")] = None,
    evidence: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="emulated (torch's own allocator; where it is at hand), simulated, formula."),
    ] = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the DeepSpeed configuration.")] = None,
    write_for: Annotated[
        str | None,
        typer.Option("--for", metavar="NAME", help="trainer: what transformers' TrainingArguments say is auto in it."),
    ] = None,
    fine_tune: Annotated[
        bool, typer.Option("--fine-tune", help="Learning rate and weight decay of fine-tuning in it.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Memory by category, collectives, bounds, and why not the others.")
    ] = False,
    reports: Reports = REPORTS,
) -> Answer:
    """Find the fastest configuration at a global batch. Stage, offload, batch, checkpointing and keys are varied."""
    from zerobench.cli.planning import is_for_trainer, tune
    from zerobench.search.plan import Request

    request = Request(
        model=model,
        gpus=gpus,
        gpu=gpu,
        global_batch=global_batch,
        tokens_per_step=tokens_per_step,
        tunes=True,
        gpus_per_node=gpus_per_node,
        host_memory=host_memory,
        host_bandwidth=host_bandwidth,
        nvme=nvme,
        sequence_length=sequence_length,
        precision=precision,
        stage=stage,
        tokens=tokens,
        evidence=evidence,
        write=write,
        for_trainer=is_for_trainer(write_for),
        fine_tunes=fine_tune,
        reports=reports,
    )
    return tune(request, details=details)
