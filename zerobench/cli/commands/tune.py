"""`zerobench tune`: the fastest configuration that fits."""

# ruff: noqa: PLC0415 -- imports stand in the command: `zerobench --help` waits for none of them

from __future__ import annotations

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
def tune(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Preset, transformers config.json or hub id.", autocompletion=completion.models
        ),
    ],
    gpus: Annotated[str, GPUS],
    gpu: Annotated[str, GPU],
    global_batch: GlobalBatch = None,
    tokens_per_step: TokensPerStep = None,
    gpus_per_node: GpusPerNode = "8",
    host_memory: HostMemory = None,
    host_bandwidth: HostBandwidth = HOST_BANDWIDTH,
    nvme: Nvme = None,
    blocks: BlocksName = "transformers",
    sequence_length: SequenceLength = None,
    precision: PrecisionName = None,
    lora: Adapters = None,
    stage: Stages = None,
    tokens: Tokens = None,
    price: Price = None,
    evidence: EvidenceName = None,
    write: Write = None,
    write_for: WriteFor = None,
    fine_tune: FineTune = False,
    measure: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Measure the N best on this machine, and take the fastest.")
    ] = None,
    details: Details = False,
    reports: Reports = REPORTS,
) -> Answer:
    """Find the fastest configuration at a global batch. Varies stage, offload, micro batch, checkpointing and keys."""
    arguments = locals()
    from zerobench.cli.planning import requested, tune

    return tune(requested({**arguments, "tunes": True}), details=details)
