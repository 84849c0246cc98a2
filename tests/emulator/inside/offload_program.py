"""A 70B model of 8 GPUs with all its states on the host, or swapped: run by test_kernels.py, on the emulator."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore

from zerobench.emulator.inside import kernels
from zerobench.emulator.inside.values import open_values

WORLD_SIZE = 8


def config(place: str, precision: str, folder: str) -> dict[str, Any]:
    there = {"device": place, "pin_memory": True, "nvme_path": folder}
    return {
        "train_micro_batch_size_per_gpu": 1,
        precision: {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": there,
            "offload_param": {**there, "buffer_count": 8, "buffer_size": 300_000_000},
        },
    }


def train(layers: int, place: str, precision: str, folder: str) -> dict[str, Any]:
    import deepspeed
    from transformers import LlamaConfig, LlamaForCausalLM

    deepspeed.init_distributed(dist_backend="nccl")
    shape = LlamaConfig(
        vocab_size=32000,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
    )
    asked = config(place, precision, folder)
    with deepspeed.zero.Init(config_dict_or_path=asked):
        model = LlamaForCausalLM(shape)
    model.gradient_checkpointing_enable()
    engine, *_ = deepspeed.initialize(model=model, config=asked, model_parameters=model.parameters())
    ids = torch.zeros(1, 2048, dtype=torch.int64, device="cuda")
    scales = []
    for _ in range(2):
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        scales.append(float(engine.optimizer.loss_scale))
    states = list(engine.optimizer.fp32_partitioned_groups_flat)
    return {
        "parameters": sum(p.ds_numel for p in model.parameters()),
        "masters": sum(state.numel() for state in states),
        "master_device": sorted({state.device.type for state in states}),
        "skipped": engine.skipped_steps,
        "norm": float(engine.get_global_grad_norm()),
        "scales": scales,
        "traffic": [kernels.read_block_io().read_bytes, kernels.read_block_io().written_bytes],
        "files": kernels.swap_file_bytes(Path(folder), 0),
        "device_peak": torch.cuda.max_memory_allocated(),
    }


def main() -> None:
    open_values()
    kernels.install()
    torch.backends.cuda.enable_cudnn_sdp(False)
    os.environ.update(
        RANK="0", WORLD_SIZE=str(WORLD_SIZE), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500"
    )
    torch.distributed.init_process_group("nccl", store=HashStore(), rank=0, world_size=WORLD_SIZE)
    layers, place, precision, folder = sys.argv[1:]
    answer = train(int(layers), place, precision, folder)
    answer["resident_peak"] = resident_peak_bytes()
    print(json.dumps(answer), flush=True)


def resident_peak_bytes() -> int:
    """Of this program alone: what getrusage says goes on from whoever started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
