"""A user's training in one process: a model of his own classes, a loss outside of it, and sometimes a fault.

python own_model.py <steps> [<step that fails> [kill]]
"""

import os
import signal
import sys

import deepspeed
import torch
from torch.nn import functional

import zerobench

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29677", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


class Net(torch.nn.Module):
    """Somebody's own model."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
        self.fails = False

    def forward(self, x):
        if self.fails and "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails:
            raise MemoryError("the data set is too large")
        return self.body(x) + x


steps, fault = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1
config = {
    "train_micro_batch_size_per_gpu": 8,
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1e5},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "gradient_clipping": 1.0,
}
model = Net()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
tracker = zerobench.track(engine, warmup=0, timed=1)
for step in range(steps):
    model.fails = step == fault
    loss = functional.mse_loss(engine(torch.randn(8, 256)), torch.randn(8, 256))
    engine.backward(loss)
    engine.step()
deepspeed.comm.destroy_process_group()
print("done", flush=True)
