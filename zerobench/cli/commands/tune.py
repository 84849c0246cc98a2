"""`zerobench tune`: the fastest configuration that fits."""

from __future__ import annotations

from typing import Annotated

import typer

from zerobench.cli import completion, options
from zerobench.cli.answer import Answer, answering
from zerobench.spec.host_bandwidth import HOST_BANDWIDTH


@answering
def tune(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Preset, transformers config.json or hub id.", autocompletion=completion.models
        ),
    ],
    gpus: Annotated[str, options.GPUS],
    gpu: Annotated[str, options.GPU],
    global_batch: options.GlobalBatch = None,
    tokens_per_step: options.TokensPerStep = None,
    gpus_per_node: options.GpusPerNode = "8",
    host_memory: options.HostMemory = None,
    host_bandwidth: options.HostBandwidth = HOST_BANDWIDTH,
    nvme: options.Nvme = None,
    blocks: options.BlocksName = None,
    sequence_length: options.SequenceLength = None,
    precision: options.PrecisionName = None,
    lora: options.Adapters = None,
    stage: options.Stages = None,
    tokens: options.Tokens = None,
    price: options.Price = None,
    evidence: options.EvidenceName = None,
    write: options.Write = None,
    write_for: options.WriteFor = None,
    fine_tune: options.FineTune = False,
    measure: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Measure the N best on this machine, and take the fastest.")
    ] = None,
    details: options.Details = False,
    reports: options.Reports = options.REPORTS,
) -> Answer:
    """Find the fastest configuration at a global batch. Varies stage, offload, micro batch, checkpointing and keys."""
    arguments = locals()
    from zerobench.cli.planning import requested, tune

    return tune(requested({**arguments, "tunes": True}), details=details)
