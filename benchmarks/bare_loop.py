"""A plain DeepSpeed training loop, as one would write it without zerobench: what zerobench is held against.

    deepspeed benchmarks/bare_loop.py JOB.json

The job names the transformers config, the DeepSpeed config, a token file and the number of steps (launches.BareJob).
Each rank leaves when it did what, in Unix time, beside the job. Nothing of zerobench is imported here.
"""

from __future__ import annotations

import time

STARTED_S = time.time()  # before the imports below, which are the larger part of a short run

import json  # noqa: E402 -- after the clock
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import deepspeed  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402


def build(job: dict[str, Any]) -> Any:
    """The engine. Each rank builds the same whole model; at stage 3 DeepSpeed partitions it."""
    ds_config = json.loads(Path(job["ds_config"]).read_text(encoding="utf-8"))
    torch.manual_seed(0)
    model_config = AutoConfig.for_model(**job["hf_config"])
    model = AutoModelForCausalLM.from_config(model_config, dtype=getattr(torch, job["dtype"]))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=ds_config)
    engine.train()
    return engine


def batches(job: dict[str, Any], rank: int, world_size: int) -> Iterator[torch.Tensor]:
    """This rank's micro-batches on the device, int64 [micro_batch_size, sequence_length], without end."""
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


def main() -> None:
    """Train, then write what was when."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    build_from_s = time.time()
    engine = build(job)
    build_to_s = time.time()
    data = batches(job, rank, world_size)
    for _ in range(job["untimed_steps"]):
        train_step(engine, next(data))
    get_accelerator().synchronize()
    timed_from_s, losses = time.time(), []
    for _ in range(job["timed_steps"]):
        losses.append(train_step(engine, next(data)))  # noqa: PERF401 -- plain, as one would write it
    get_accelerator().synchronize()
    report = {
        "started_s": STARTED_S,
        "build_s": [build_from_s, build_to_s],
        "untimed_s": [build_to_s, timed_from_s],
        "timed_s": [timed_from_s, time.time()],
        "losses": torch.stack(losses).tolist(),
        "parameters": sum(int(getattr(p, "ds_numel", p.numel())) for p in engine.module.parameters()),
    }
    Path(f"{sys.argv[1]}.rank{rank}").write_text(json.dumps(report), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
