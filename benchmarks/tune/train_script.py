"""A training script as DeepSpeed's launcher and its autotuner start it: a Llama's shape, random tokens, timed steps.

deepspeed train_script.py --shape shape.json --sequence-length 64 --deepspeed_config ds.json [--times times.json]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

_WARMUP, _TIMED = 3, 10


def main() -> None:
    """Train a few steps; rank 0 writes the seconds of the timed ones where it is asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", type=Path, required=True)
    parser.add_argument("--sequence-length", type=int, required=True)
    parser.add_argument("--times", type=Path)
    parser.add_argument("--local_rank", type=int, default=0)
    deepspeed.add_config_arguments(parser)
    asked = parser.parse_args()
    deepspeed.init_distributed(verbose=False)
    shape = json.loads(asked.shape.read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=torch.bfloat16)
    trained = list(model.parameters())
    engine, *_ = deepspeed.initialize(args=asked, model=model, model_parameters=trained)
    sizes = (engine.train_micro_batch_size_per_gpu(), asked.sequence_length)
    seconds = []
    for _ in range(_WARMUP + _TIMED):
        begun = time.perf_counter()
        for _ in range(engine.gradient_accumulation_steps()):
            tokens = torch.randint(shape["vocab_size"], sizes, device=engine.device)
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
        seconds.append(time.perf_counter() - begun)
    if asked.times is not None and torch.distributed.get_rank() == 0:
        asked.times.write_text(json.dumps(seconds[_WARMUP:]), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
