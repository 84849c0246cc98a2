"""A user's training: a loop of his own around DeepSpeed engines, for the work of trials that zerobench ran.

    deepspeed training_loop.py <folder for reports> <trial folder>...

Model and configuration are those in each trial's folder, all else is what anybody would write.
"""

import gc
import json
import sys
from pathlib import Path

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import zerobench
from zerobench.config.trial.trial import TrialSpec


def train(reports: Path, folder: Path) -> None:
    """One engine, trained for as long as it is tracked and a step more."""
    trial = TrialSpec.model_validate_json((folder / "trial.json").read_bytes())
    config = json.loads((folder / "ds_config.json").read_text())
    shape = AutoConfig.for_model(**trial.model.hf_config)
    shape.use_cache = False
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=trial.zero_stage == 3):
        model = AutoModelForCausalLM.from_config(shape, attn_implementation="sdpa")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    micro_steps = 0
    steps = {"warmup": trial.steps.warmup, "memory": trial.steps.memory, "timed": trial.steps.timed}
    with zerobench.track(engine, name=trial.strategy, reports=reports, **steps) as tracker:
        for _ in range((trial.steps.total + 1) * trial.gradient_accumulation_steps):
            tokens = torch.randint(0, shape.vocab_size, (trial.micro_batch_size, trial.sequence_length))
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            del loss
            engine.step()
            micro_steps += not tracker.done
    print(f"{trial.strategy}: tracked for {micro_steps} micro-steps, then {tracker.done}", flush=True)
    engine.destroy()


deepspeed.init_distributed()
for name in sys.argv[2:]:
    train(Path(sys.argv[1]), Path(name))
    gc.collect()
deepspeed.comm.destroy_process_group()
