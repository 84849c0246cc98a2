"""`zerobench plan`: predict what fits."""

from typing import Annotated

import typer

from zerobench.cli import completion, options
from zerobench.cli.answer import Answer, answering
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
    model: options.Model = None,
    gpus: Annotated[str | None, options.GPUS] = None,
    gpu: Annotated[str | None, options.GPU] = None,
    gpus_per_node: options.GpusPerNode = "8",
    host_memory: options.HostMemory = None,
    host_bandwidth: options.HostBandwidth = HOST_BANDWIDTH,
    nvme: options.Nvme = None,
    blocks: options.BlocksName = None,
    micro_batch: Annotated[str | None, typer.Option(metavar="N", help="Micro-batch size per GPU (1).")] = None,
    gradient_accumulation: Annotated[
        str | None, typer.Option(metavar="N", help="Gradient accumulation steps (1).")
    ] = None,
    global_batch: options.GlobalBatch = None,
    tokens_per_step: options.TokensPerStep = None,
    sequence_length: options.SequenceLength = None,
    precision: options.PrecisionName = None,
    activation_checkpointing: Annotated[
        bool,
        typer.Option(
            "--activation-checkpointing", help="Activation checkpointing: keep each layer's input, recompute the rest."
        ),
    ] = False,
    lora: options.Adapters = None,
    stage: options.Stages = None,
    ds_config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Predict your own DeepSpeed configuration.")
    ] = None,
    tokens: options.Tokens = None,
    price: options.Price = None,
    frontier: Annotated[
        str | None, typer.Option(metavar="AXIS", help="Largest that fits: model, micro-batch or sequence-length.")
    ] = None,
    evidence: options.EvidenceName = None,
    formula: Annotated[
        bool, typer.Option("--formula", help="Use closed forms: no torch, one second, less exact.")
    ] = False,
    write: options.Write = None,
    write_for: options.WriteFor = None,
    fine_tune: options.FineTune = False,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="AXIS=VALUE,...", help="Replace an axis of SWEEP.", autocompletion=completion.axis_values
        ),
    ] = None,
    details: options.Details = False,
    reports: options.Reports = options.REPORTS,
) -> Answer:
    """Predict what fits and how fast it is expected to be. No GPU needed."""
    arguments = locals()
    from zerobench.cli.planning import plan, requested

    return plan(requested(arguments), details=details)
