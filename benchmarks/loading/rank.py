"""One rank that loads a checkpoint: `python -m benchmarks.loading.rank WAY CHECKPOINT MARKS`.

It writes `<MARKS>/<rank>.<moment>` when it has imported everything (`begun`), has its model (`loaded`) and has its
engine (`ready`), and waits at each for the file that lets it go on (`begin`, `build`, `end`). Of its memory it says
nothing: who started it looks at it from outside.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.comm import torch as torch_backend
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig

Load = Callable[[Path], Any]


def config_of(stage: int) -> dict[str, Any]:
    """The DeepSpeed configuration; buckets are small beside the model, so that they are not what is seen."""
    zero = {"stage": stage, "reduce_bucket_size": 10**6, "stage3_prefetch_bucket_size": 10**6, "overlap_comm": False}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    }


def in_fp32(folder: Path) -> Any:
    """As torch makes a model unless it is told: every rank the whole, in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def as_stored(folder: Path) -> Any:
    """In the checkpoint's own type (`dtype="auto"`, transformers 5's default), every rank the whole."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


def under_zero_init(folder: Path) -> Any:
    """Under zero.Init, as the Trainer does at stage 3: rank 0 reads, every rank keeps its part."""
    _KEPT.append(HfDeepSpeedConfig(config_of(3)))  # transformers asks whether there is one for as long as it lives
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


def from_rank_0(folder: Path) -> Any:
    """Rank 0 loads, the others take what it broadcasts, tensor by tensor."""
    if dist.get_rank() == 0:
        model = as_stored(folder)
    else:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(folder)
            model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
        model.to_empty(device="cpu")
        model.tie_weights()
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, 0)
    return model


WAYS: dict[str, tuple[Load, int]] = {
    "stage 2, fp32": (in_fp32, 2),
    "stage 2, as stored": (as_stored, 2),
    "stage 2, rank 0 broadcasts": (from_rank_0, 2),
    "stage 3, as stored": (as_stored, 3),
    "stage 3, zero.Init": (under_zero_init, 3),
}
"""What loads, and the stage of the engine that is built of it."""

_KEPT: list[Any] = []


def main(way: str, checkpoint: Path, marks: Path) -> None:
    """Load, build the engine, and wait between."""
    load, stage = WAYS[way]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch_backend.build_shm_op = lambda: None  # its own all-reduce in shared memory would have to be compiled
    deepspeed.init_distributed("gloo", verbose=False)
    import_module("transformers.models.llama.modeling_llama")  # 100 MiB a rank, and nothing of the checkpoint
    _wait(marks, rank, "begun", "begin")
    model = load(checkpoint)
    dist.barrier()
    _wait(marks, rank, "loaded", "build")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config_of(stage))
    dist.barrier()
    _wait(marks, rank, "ready", "end")
    del engine
    dist.destroy_process_group()


def _wait(marks: Path, rank: int, moment: str, until: str) -> None:
    (marks / f"{rank}.{moment}").touch()
    while not (marks / until).exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
