"""Hugging Face's Trainer over DeepSpeed on the job of `bare_loop.py`, timed from outside by a callback.

deepspeed benchmarks/gpu_campaign/trainer_loop.py JOB.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Samples(Dataset[dict[str, torch.Tensor]]):
    """The token file, a sample a row, which is input and label."""

    def __init__(self, path: str) -> None:
        self._rows = np.load(path)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One sample, int64 [sequence_length] each."""
        row = torch.from_numpy(self._rows[index])
        return {"input_ids": row, "labels": row}


class Clock(TrainerCallback):  # type: ignore[misc] # transformers is untyped
    """Reads the clock around the timed steps, the device synchronised."""

    def __init__(self, untimed: int, timed: int) -> None:
        self._ends = {untimed: "from", untimed + timed: "to"}
        self.at_s: dict[str, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the last untimed step, and after the last timed one."""
        del args, control
        if state.global_step in self._ends:
            get_accelerator().synchronize()
            self.at_s[self._ends[state.global_step]] = time.time()


def arguments(job: dict[str, Any], steps: int) -> TrainingArguments:
    """The Trainer's, which say the same as the DeepSpeed configuration where both speak of it."""
    config = json.loads(Path(job["ds_config"]).read_text(encoding="utf-8"))
    optimizer = config["optimizer"]["params"]
    return TrainingArguments(
        output_dir=str(Path(sys.argv[1]).with_suffix(".trainer")),
        max_steps=steps,
        per_device_train_batch_size=job["micro_batch_size"],
        gradient_accumulation_steps=config["gradient_accumulation_steps"],
        learning_rate=optimizer["lr"],
        weight_decay=optimizer["weight_decay"],
        adam_beta1=optimizer["betas"][0],
        adam_beta2=optimizer["betas"][1],
        adam_epsilon=optimizer["eps"],
        max_grad_norm=config["gradient_clipping"],
        lr_scheduler_type="constant",
        bf16=True,
        gradient_checkpointing=job["activation_checkpointing"],
        deepspeed=config,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=get_accelerator().device_name() == "cpu",
    )


def main() -> None:
    """Train, then write what was when."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    begun_s = time.time()
    training_arguments = arguments(job, job["untimed_steps"] + job["timed_steps"])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**job["hf_config"]), dtype=torch.bfloat16)
    clock = Clock(job["untimed_steps"], job["timed_steps"])
    trainer = Trainer(model=model, args=training_arguments, train_dataset=Samples(job["tokens"]), callbacks=[clock])
    built_s = time.time()
    result = trainer.train()
    report = {
        "pid": os.getpid(),
        "build_s": [begun_s, built_s],
        "untimed_s": [built_s, clock.at_s["from"]],
        "timed_s": [clock.at_s["from"], clock.at_s["to"]],
        "losses": [result.training_loss] * job["timed_steps"],  # it tells the mean of all steps alone
        "num_params": sum(int(getattr(p, "ds_numel", p.numel())) for p in model.parameters()),
    }
    rank = torch.distributed.get_rank()
    Path(f"{sys.argv[1]}.rank{rank}").write_text(json.dumps(report), encoding="utf-8")
    torch.distributed.barrier()
    os._exit(0)  # some builds of torch abort in an ordinary exit, after right results


if __name__ == "__main__":
    main()
