"""Tensor parallelism by DeepSpeed's AutoTP, ZeRO-1 beside it."""

import argparse

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 1},
    "tensor_parallel": {"autotp_size": 4},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.parse_args()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32000, hidden_size=512, intermediate_size=1376, num_hidden_layers=2, num_attention_heads=8
        )
    ).to(torch.bfloat16)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    for _ in range(50):
        tokens = torch.randint(0, 32000, (2, 128), device=engine.device)
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()


if __name__ == "__main__":
    main()
