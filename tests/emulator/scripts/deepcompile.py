"""DeepSpeed's DeepCompile: python deepcompile.py ZERO_STAGE WIDTH LAYERS BUCKET_ELEMENTS."""

import sys

import deepspeed
import torch

stage, width, layers, bucket = map(int, sys.argv[1:])
config = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": stage, "reduce_bucket_size": bucket},
    "compile": {"deepcompile": True},
}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x.float().sum()


deepspeed.init_distributed()
with deepspeed.zero.Init(enabled=stage == 3, config_dict_or_path=config):
    model = Model()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
engine.compile()
batch = torch.ones(16, width, device=engine.device, dtype=torch.bfloat16)
for _ in range(20):
    engine.backward(engine(batch))
    engine.step()
