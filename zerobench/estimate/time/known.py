"""Of which work a time is expected, why of other work none is, and what is taken for granted."""

from __future__ import annotations

from zerobench.config.derived.batch import AUTOTP_SIZE, autotp_size
from zerobench.config.trial.adapter import is_wide, lora_of
from zerobench.config.trial.trial import Attention, Blocks, Compile, Offload, Precision, TrialSpec
from zerobench.estimate.clock.assumed import COPIES_WORDS, HOST_UPDATE_WORDS
from zerobench.estimate.time.transformers_blocks import words_of

_FITTED = "fsdp"
"""The engine of the rows."""

_WHOLE = ("single", "ddp", "zero0", "zero1", "zero2", "zero3", _FITTED)
"""Strategies whose ranks each run the whole decoder."""

_DIVIDED = {
    "tensor": {"matrix shards run at the rate of whole matrices of their size, DTensor's launches hidden": 0.15},
    "pipeline": {"all stages' blocks take the recorded stage's time, and passes follow the schedule": 0.12},
}
"""Strategies whose ranks divide the decoder, and what is taken for granted of each."""

_LARGE_OVERHEAD = 0.1
"""Share of a step from which on what the loop does between steps is named."""


_JUDGED_RANKS = 512
"""The most ranks of a row that the model was held against."""


def why_unknown(spec: TrialSpec) -> str | None:
    """Why no time is expected of such work, whatever its GPU and its record; None where one is."""
    if spec.own is not None:
        return "user script"
    if spec.strategy not in {*_WHOLE, *_DIVIDED}:
        return f"{spec.strategy}: rank synchronization not modelled"
    if autotp_size(spec) > 1:
        return f"{AUTOTP_SIZE}: tensor-parallel communication not modelled"
    if spec.attention is Attention.EAGER:
        return "eager attention: rates cover fused kernels only"
    if spec.precision is Precision.FP32:
        return "precision fp32: rates cover 16 bits only"
    return None if spec.batch_ramp is None else "batch ramp: step sizes vary"


def assumptions(spec: TrialSpec) -> dict[str, float]:
    """What of this work the fitted rows have not, and the spread that it brings (of the time's logarithm)."""
    spreads = dict(_DIVIDED.get(spec.strategy, {}))
    if spec.strategy not in {_FITTED, *_DIVIDED} and spec.world_size > 1:
        spreads[f"{spec.strategy} overlaps its collectives as FSDP does"] = 0.1
    if spec.offloaded_to:
        spreads[COPIES_WORDS] = 0.25
    if spec.offload_optimizer is not Offload.NONE:
        spreads[HOST_UPDATE_WORDS] = 0.55
    elif spec.offloaded_to and spec.zero_stage == 3:  # no GPU has shown it: the update of states on the host has
        spreads["the host casts new weights in memory that its kernel zeroes at 6 GB/s"] = 0.4
    if spec.adapter is not None:
        in_fp32 = "fp32, cast to and from, their matmuls outside of tensor cores"
        how = in_fp32 if is_wide(spec.adapter) else "16 bits, their matmuls memory-bound"
        spreads[f"adapters are in {how}"] = 0.02
        if lora_of(spec.adapter).base is not None:
            spreads["dequantizing a matrix for each product is memory-bound"] = 0.05
    if spec.world_size > _JUDGED_RANKS:
        spreads[f"stragglers grow beyond {_JUDGED_RANKS} ranks at the rate seen up to there"] = 0.05
    if spec.prediction.blocks is Blocks.FUSED:
        spreads["blocks fuse norms and activation, and kernels are those of LLM Foundry's runs of 2023"] = 0.0
        if spec.model.model_type not in {"gpt2", "gpt_neox"}:
            spreads[f"element-wise work of {spec.model.model_type} scales with width as for GPT"] = 0.04
    elif spec.compile is not Compile.NONE:
        spreads["compiled blocks fuse what the fitted runs' do, and the host is no faster"] = 0.1
    elif words_of(spec.model) is None:
        spreads[f"blocks of {spec.model.model_type} move as many bytes a unit of width as counted ones"] = 0.04
    return spreads


def overhead_assumption(overhead_s: float, step_s: float) -> dict[str, float]:
    """Of steps so short that what the fitted runs did between them weighs: it is their loop's, not everybody's."""
    if overhead_s < _LARGE_OVERHEAD * step_s:
        return {}
    return {
        f"{1e3 * overhead_s:.0f} ms of each step are the training loop's own (data, logging); another's may differ": 0.0
    }
