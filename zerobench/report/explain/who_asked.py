"""The part of a training that requested memory, by the frames of a traceback, and the settings of that part.

Innermost first; the first row that fits a frame decides. Sources: DeepSpeed 0.9 to 0.19, torch 2.0 to 2.13,
transformers 4 and 5, accelerate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerobench.report.explain.torch_message import Frame

_BATCH = "the micro batch, the sequence length and activation checkpointing"


@dataclass(frozen=True)
class MemoryUser:
    """A part of a training that takes memory."""

    does: str
    """Its activity, after "it"."""
    settings: str
    """Settings that its size depends on."""


_GATHERS = MemoryUser(
    "gathered parameters of other ranks (ZeRO-3)",
    "stage3_prefetch_bucket_size, stage3_max_live_parameters and the size of the largest layer",
)
_REDUCES = MemoryUser(
    "packed gradients for the reduction over ranks",
    "reduce_bucket_size (twice with overlap_comm) and the size of the largest parameter",
)
_STATES = MemoryUser(
    "created the optimizer's fp32 weights and states at start-up",
    "the ZeRO stage, the number of GPUs, and offload_optimizer",
)
_UPDATES = MemoryUser(
    "updated the weights: Adam's moments are created in the first step, temporary copies of gradients in each",
    "the ZeRO stage, offload_optimizer, and at stage 3 sub_group_size",
)
_MOVES = MemoryUser(
    "moved the whole model to the GPU, on each rank",
    "the model alone: at stage 3 build it under deepspeed.zero.Init (transformers: make TrainingArguments before the "
    "model), else take a 16-bit torch_dtype",
)
_LOADS = MemoryUser(
    "loaded the model's weights", "torch_dtype, and whether zero.Init or low_cpu_mem_usage builds it in parts"
)
_LOSS = MemoryUser(
    "computed the loss from logits (micro batch x sequence length x vocabulary, in fp32 more than once)",
    "the micro batch, the sequence length, and a chunked loss (Liger's fused cross entropy)",
)
_RECOMPUTES = MemoryUser("recomputed a block for its backward pass (activation checkpointing)", _BATCH)
_SAVES = MemoryUser(
    "gathered the whole model to save it", "stage3_gather_16bit_weights_on_model_save, and saving shards instead"
)

_EVALUATES = MemoryUser(
    "kept the logits of all evaluated batches on the GPU",
    "eval_accumulation_steps, preprocess_logits_for_metrics, or prediction_loss_only",
)
_DEQUANTISES = MemoryUser("made a quantized matrix whole for its product", "the model's largest matrix alone")

_FORWARD = MemoryUser("computed activations of the forward pass", _BATCH)
_BACKWARD = MemoryUser("computed gradients of activations in the backward pass", _BATCH)

_ASKERS: tuple[tuple[str, tuple[str, ...], MemoryUser], ...] = (
    ("deepspeed/runtime/zero/partitioned_param_coordinator.py", ("",), _GATHERS),
    ("deepspeed/runtime/zero/partition_parameters.py", ("all_gather", "_all_gather", "_allgather", "_dist_"), _GATHERS),
    ("deepspeed/runtime/zero/partition_parameters.py", ("__enter__",), _GATHERS),
    ("deepspeed/runtime/zero/partition_parameters.py", ("",), _LOADS),
    ("deepspeed/runtime/zero/stage", ("__init__", "_setup", "_create", "initialize_optimizer"), _STATES),
    ("deepspeed/runtime/zero/stage", ("step", "_optimizer", "_prepare", "get_flat", "unscale", "_unflatten"), _UPDATES),
    ("deepspeed/runtime/zero/stage", ("get_grad_norm", "scaled_global", "_release", "_get_norm"), _UPDATES),
    ("deepspeed/runtime/zero/stage", ("",), _REDUCES),
    ("deepspeed/runtime/bf16_optimizer.py", ("step", "get_grads", "update"), _UPDATES),
    ("deepspeed/runtime/bf16_optimizer.py", ("",), _STATES),
    ("deepspeed/runtime/engine.py", ("_configure_distributed_model",), _MOVES),
    ("deepspeed/runtime/engine.py", ("_configure",), _STATES),
    ("deepspeed/runtime/engine.py", ("save", "_save", "_zero3_consolidated"), _SAVES),
    ("torch/optim/", ("",), _UPDATES),
    ("deepspeed/ops/adam/", ("",), _UPDATES),
    ("transformers/modeling_utils.py", ("from_pretrained", "_load", "load_"), _LOADS),
    ("transformers/loss/", ("",), _LOSS),
    ("transformers/trainer_pt_utils.py", ("",), _EVALUATES),
    ("bitsandbytes/functional.py", ("dequantize",), _DEQUANTISES),
    ("torch/nn/functional.py", ("cross_entropy",), _LOSS),
    ("accelerate/utils/operations.py", ("convert_to_fp32", "_convert_to_fp32"), _LOSS),
    ("torch/utils/checkpoint.py", ("recompute", "unpack", "backward"), _RECOMPUTES),
    ("torch/autograd/graph.py", ("_engine_run_backward",), _BACKWARD),
    ("torch/autograd/__init__.py", ("backward",), _BACKWARD),
    ("torch/_tensor.py", ("backward",), _BACKWARD),
    (
        "torch/distributed/fsdp/",
        ("",),
        MemoryUser("gathered or reduced a block's parameters (FSDP)", "the size of its units"),
    ),
    ("torch/nn/modules/module.py", ("to", "cuda", "_apply", "convert", "half", "bfloat16", "<lambda>"), _MOVES),
)

_PHASES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("saving", (("deepspeed/runtime/engine.py", "save"), ("transformers/trainer.py", "_save"))),
    ("loading", (("transformers/modeling_utils.py", "from_pretrained"),)),
    ("initialization", (("deepspeed/__init__.py", "initialize"), ("accelerate/accelerator.py", "prepare"))),
    ("backward", (("torch/_tensor.py", "backward"), ("torch/autograd/", ""), ("deepspeed/runtime/engine.py", "back"))),
    ("the update", (("torch/optim/", ""), ("deepspeed/runtime/engine.py", "_take_model_step"))),
    ("generation", (("transformers/generation/", ""),)),
    ("evaluation", (("transformers/trainer.py", "evaluat"),)),
    ("forward", (("deepspeed/runtime/engine.py", "forward"), ("torch/nn/modules/", "forward"))),
    ("forward", (("torch/nn/modules/module.py", "_call_impl"), ("transformers/models/", ""))),
    ("initialization", (("torch/nn/modules/module.py", "_apply"),)),
)
"""Phases by their frames, wherever they stand; the first phase that has one decides."""


def phase_of(frames: Sequence[Frame]) -> str | None:
    """Phase of the training; None if no frame tells."""
    return next(
        (phase for phase, rules in _PHASES if any(_fits(frame, *rule) for frame in frames for rule in rules)), None
    )


def asker_of(frames: Sequence[Frame]) -> MemoryUser | None:
    """The part that requested memory; None if no frame tells."""
    for frame in reversed(frames):
        for file, functions, asker in _ASKERS:
            if any(_fits(frame, file, function) for function in functions):
                return asker
    return {"forward": _FORWARD, "backward": _BACKWARD}.get(phase_of(frames) or "")


def _fits(frame: Frame, file: str, function: str) -> bool:
    return f"/{file}" in f"/{frame.file}" and frame.function.lstrip("_").startswith(function.lstrip("_"))
