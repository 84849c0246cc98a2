"""`zerobench plan`: predict what fits."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from typing import Annotated

import typer

from zerobench.cli import completion
from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import (
    GPU,
    GPUS,
    REPORTS,
    Adapters,
    BlocksName,
    Details,
    EvidenceName,
    FineTune,
    GlobalBatch,
    GpusPerNode,
    HostBandwidth,
    HostMemory,
    Model,
    Nvme,
    PrecisionName,
    Price,
    Reports,
    SequenceLength,
    Stages,
    Tokens,
    TokensPerStep,
    Write,
    WriteFor,
)
from zerobench.spec.host_bandwidth import HOST_BANDWIDTH


@answering
def plan(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|SWEEP",
            help="Model, or sweep to predict instead of stages and offloads.",
            autocompletion=completion.models_and_sweeps,
        ),
    ] = None,
    model: Model = None,
    gpus: Annotated[str | None, GPUS] = None,
    gpu: Annotated[str | None, GPU] = None,
    gpus_per_node: GpusPerNode = "8",
    host_memory: HostMemory = None,
    host_bandwidth: HostBandwidth = HOST_BANDWIDTH,
    nvme: Nvme = None,
    blocks: BlocksName = "transformers",
    micro_batch: Annotated[str | None, typer.Option(metavar="N", help="Micro-batch size per GPU (1).")] = None,
    gradient_accumulation: Annotated[
        str | None, typer.Option(metavar="N", help="Gradient accumulation steps (1).")
    ] = None,
    global_batch: GlobalBatch = None,
    tokens_per_step: TokensPerStep = None,
    sequence_length: SequenceLength = None,
    precision: PrecisionName = None,
    activation_checkpointing: Annotated[
        bool,
        typer.Option(
            "--activation-checkpointing", help="Activation checkpointing: keep each layer's input, recompute the rest."
        ),
    ] = False,
    lora: Adapters = None,
    stage: Stages = None,
    ds_config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Predict your own DeepSpeed configuration.")
    ] = None,
    tokens: Tokens = None,
    price: Price = None,
    frontier: Annotated[
        str | None, typer.Option(metavar="AXIS", help="Largest that fits: model, micro-batch or sequence-length.")
    ] = None,
    evidence: EvidenceName = None,
    formula: Annotated[
        bool, typer.Option("--formula", help="Use closed forms: no torch, one second, less exact.")
    ] = False,
    write: Write = None,
    write_for: WriteFor = None,
    fine_tune: FineTune = False,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="AXIS=VALUE,...", help="Replace an axis of SWEEP.", autocompletion=completion.axis_values
        ),
    ] = None,
    details: Details = False,
    reports: Reports = REPORTS,
) -> Answer:
    """Predict what fits and how fast it is expected to be. No GPU needed."""
    arguments = locals()
    from zerobench.cli.planning import plan, requested

    return plan(requested(arguments), details=details)
