"""A plain DeepSpeed training loop, as one would write it without zerobench: what zerobench is held against.

    deepspeed benchmarks/bare_loop.py JOB.json

The job (launches.Bench writes it) names the transformers config, the DeepSpeed config, a token file and the number of
steps. Each rank leaves when it did what, in Unix time, beside the job. Nothing of zerobench is imported here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from transformers import AutoConfig, AutoModelForCausalLM


def build(job: dict[str, Any]) -> Any:
    """The engine. Each rank builds the same whole model; at stage 3 DeepSpeed partitions it."""
    torch.manual_seed(0)
    model_config = AutoConfig.for_model(**job["hf_config"])
    model = AutoModelForCausalLM.from_config(model_config, dtype=getattr(torch, job["dtype"]))
    if job["activation_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=list(model.parameters()),
        config=json.loads(Path(job["ds_config"]).read_text(encoding="utf-8")),
    )
    return engine


def batches(job: dict[str, Any], rank: int, world_size: int) -> Iterator[torch.Tensor]:
    """Micro-batches of one rank on its device, int64 [micro_batch_size, sequence_length], round and round the file."""
    own = np.load(job["tokens"])[rank::world_size].reshape(-1, job["micro_batch_size"], job["sequence_length"])
    while True:
        for batch in own:
            yield torch.from_numpy(batch).to(get_accelerator().current_device_name())


def train_step(engine: Any, batch: torch.Tensor) -> torch.Tensor:
    """One optimizer step; the loss, on the device."""
    loss: torch.Tensor = engine(input_ids=batch, labels=batch).loss
    engine.backward(loss)
    engine.step()
    return loss.detach()


def unlink_shared_memory(rank: int) -> None:
    """DeepSpeed leaves the segment of its CPU all-reduce in /dev/shm for good, 69 MB for each rank."""
    name = "_".join([str(os.getuid()), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], str(rank)])
    Path("/dev/shm", f"deepspeed_allreduce_buffer_{name}").unlink(missing_ok=True)  # noqa: S108 - shm_open's own place


def main() -> None:
    """Train, then write what was when."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    begun_s = time.time()
    engine = build(job)
    data = batches(job, rank, world_size)
    built_s = time.time()
    for _ in range(job["untimed_steps"]):
        train_step(engine, next(data))
    get_accelerator().synchronize()
    timed_from_s = time.time()
    losses = [train_step(engine, next(data)) for _ in range(job["timed_steps"])]
    get_accelerator().synchronize()
    timed_to_s = time.time()
    report = {
        "pid": os.getpid(),
        "build_s": [begun_s, built_s],
        "untimed_s": [built_s, timed_from_s],
        "timed_s": [timed_from_s, timed_to_s],
        "losses": torch.stack(losses).tolist(),
        "num_params": sum(int(getattr(p, "ds_numel", p.numel())) for p in engine.module.parameters()),
    }
    Path(f"{sys.argv[1]}.rank{rank}").write_text(json.dumps(report), encoding="utf-8")
    torch.distributed.barrier()
    unlink_shared_memory(rank)
    os._exit(0)  # some builds of torch abort in an ordinary exit, after right results


if __name__ == "__main__":
    main()
