"""Layers over the stages of DeepSpeed's pipeline."""

import argparse

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stages", type=int, default=4)
    args = deepspeed.add_config_arguments(parser).parse_args()
    deepspeed.init_distributed()
    layers = [LayerSpec(Block, 1024) for _ in range(8)]
    module = PipelineModule(layers, num_stages=args.stages, loss_fn=nn.MSELoss())
    data = [(torch.zeros(1024), torch.zeros(1024))] * 4096
    engine, *_ = deepspeed.initialize(
        args=args, model=module, model_parameters=list(module.parameters()), training_data=data
    )
    for _ in range(100):
        engine.train_batch()


if __name__ == "__main__":
    main()
