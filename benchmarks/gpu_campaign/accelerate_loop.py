"""Hugging Face accelerate over DDP or FSDP2 on the job of `bare_loop.py`, in the loop that its documentation shows.

    deepspeed benchmarks/gpu_campaign/accelerate_loop.py JOB.json

Parameters are fp32 and computed with in bf16, which is accelerate's way of mixed precision: as many bytes of states as
16-bit parameters with fp32 masters have.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from deepspeed.accelerator import get_accelerator
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.bare_loop import batches


def build(job: dict[str, Any]) -> tuple[Accelerator, Any, torch.optim.Optimizer]:
    """The accelerator, the model as it has wrapped it, and the optimizer."""
    torch.manual_seed(0)
    sharded = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    accelerator = Accelerator(
        mixed_precision="bf16",
        cpu=get_accelerator().device_name() == "cpu",
        fsdp_plugin=sharded if job["is_fsdp"] else None,
    )
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**job["hf_config"]), dtype=torch.float32)
    if job["activation_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    params = json.loads(Path(job["ds_config"]).read_text(encoding="utf-8"))["optimizer"]["params"]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=params["lr"],
        betas=tuple(params["betas"]),
        eps=params["eps"],
        weight_decay=params["weight_decay"],
        fused=get_accelerator().device_name() != "cpu" or None,
    )
    return accelerator, *accelerator.prepare(model, optimizer)


def main() -> None:
    """Train, then write what was when."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    begun_s = time.time()
    accelerator, model, optimizer = build(job)
    clipping = json.loads(Path(job["ds_config"]).read_text(encoding="utf-8"))["gradient_clipping"]
    data = batches(job, accelerator.process_index, accelerator.num_processes)

    def step() -> torch.Tensor:
        batch = next(data)
        loss: torch.Tensor = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), clipping)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    built_s = time.time()
    for _ in range(job["untimed_steps"]):
        step()
    get_accelerator().synchronize()
    timed_from_s = time.time()
    losses = [step() for _ in range(job["timed_steps"])]
    get_accelerator().synchronize()
    report = {
        "pid": os.getpid(),
        "build_s": [begun_s, built_s],
        "untimed_s": [built_s, timed_from_s],
        "timed_s": [timed_from_s, time.time()],
        "losses": torch.stack(losses).float().tolist(),
        "num_params": sum(int(p.numel()) for p in model.parameters()),
    }
    Path(f"{sys.argv[1]}.rank{accelerator.process_index}").write_text(json.dumps(report), encoding="utf-8")
    accelerator.wait_for_everyone()
    os._exit(0)  # some builds of torch abort in an ordinary exit, after right results


if __name__ == "__main__":
    main()
