"""`zerobench plan`: predict what fits."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Reports


@answering
def plan(
    sweep: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL|SWEEP]", help="A model; or a sweep to predict, instead of stages and offloads."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A preset, a transformers config.json or a hub id.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="GPUs of all nodes.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Their name in the hardware catalogue: h200.")] = None,
    gpus_per_node: Annotated[str, typer.Option(metavar="N", help="GPUs of one node.")] = "8",
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Host memory of one node: 1TB.")] = None,
    host_bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="What that memory moves; two sockets of EPYC 9004 by default.")
    ] = "921.6GB/s",
    nvme: Annotated[
        str | None, typer.Option(metavar="RATE", help="What the NVMe drives of one node read: 7GB/s.")
    ] = None,
    micro_batch: Annotated[str | None, typer.Option(metavar="N", help="Micro-batch size per GPU (1).")] = None,
    gradient_accumulation: Annotated[str | None, typer.Option(metavar="N", help="Passes a step (1).")] = None,
    global_batch: Annotated[
        str | None,
        typer.Option(metavar="N", help="Sequences a step: micro batch, accumulation and checkpointing are searched."),
    ] = None,
    tokens_per_step: Annotated[str | None, typer.Option(metavar="N", help="The same in tokens: 4M.")] = None,
    sequence_length: Annotated[str | None, typer.Option(metavar="N", help="Tokens a sequence (2048).")] = None,
    precision: Annotated[str | None, typer.Option(metavar="NAME", help="bf16 (default), fp16 or fp32.")] = None,
    activation_checkpointing: Annotated[
        bool, typer.Option("--activation-checkpointing", help="Keep each layer's input alone, compute the rest again.")
    ] = False,
    lora: Annotated[
        str | None, typer.Option(metavar="RANK", help="Train adapters of this rank beside the frozen model: 16.")
    ] = None,
    stage: Annotated[str | None, typer.Option(metavar="N,...", help="Only these ZeRO stages.")] = None,
    ds_config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Predict this DeepSpeed configuration of your own.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(metavar="N", help="How long so many take at least: 300B.")] = None,
    frontier: Annotated[
        str | None, typer.Option(metavar="AXIS", help="The most that fits: model, micro-batch or sequence-length.")
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="emulated (torch's own allocator; where it is at hand), simulated, formula."),
    ] = None,
    formula: Annotated[
        bool, typer.Option("--formula", help="By closed forms: without torch, in a second, less exact.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the recommended DeepSpeed configuration.")
    ] = None,
    write_for: Annotated[
        str | None,
        typer.Option("--for", metavar="NAME", help="trainer: what transformers' TrainingArguments say is auto in it."),
    ] = None,
    fine_tune: Annotated[
        bool, typer.Option("--fine-tune", help="Learning rate and weight decay of fine-tuning in it.")
    ] = False,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="AXIS=VALUE,...", help="Replace an axis of SWEEP.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Memory by category, collectives, bounds, and why not the others.")
    ] = False,
    reports: Reports = REPORTS,
) -> Answer:
    """Predict what fits and how fast it is expected to be. No GPU is needed."""
    from zerobench.cli.planning import is_for_trainer, plan
    from zerobench.search.plan import Request

    request = Request(
        sweep=sweep,
        model=model,
        gpus=gpus,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        host_memory=host_memory,
        host_bandwidth=host_bandwidth,
        nvme=nvme,
        micro_batch=micro_batch,
        gradient_accumulation=gradient_accumulation,
        global_batch=global_batch,
        tokens_per_step=tokens_per_step,
        sequence_length=sequence_length,
        precision=precision,
        activation_checkpointing=activation_checkpointing,
        lora=lora,
        stage=stage,
        ds_config=ds_config,
        write=write,
        for_trainer=is_for_trainer(write_for),
        fine_tunes=fine_tune,
        tokens=tokens,
        frontier=frontier,
        evidence=evidence,
        formula=formula,
        sets=sets or [],
        reports=reports,
    )
    return plan(request, details=details)
