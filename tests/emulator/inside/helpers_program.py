"""What the ledger says of the host under SuperOffload or ZenFlow: run by test_helpers.py, on the emulator."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore

from zerobench.common.vocabulary import Phase, Place, StepKind
from zerobench.emulator.inside import kernels
from zerobench.emulator.inside.values import open_values
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_deepspeed
from zerobench.rank.ledger.ledger import Ledger

WIDTH, LAYERS, STEPS = 2048, 8, 4
MODES: dict[str, dict[str, Any]] = {
    "superoffload": {"offload_optimizer": {"device": "cpu", "pin_memory": True, "super_offload": True}},
    "zenflow": {
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "zenflow": {
            "topk_ratio": 0.1,
            "update_interval": 2,
            "select_interval": 4,
            "select_strategy": "step",
            "overlap_step": True,
        },
    },
}


def host_rows(mode: str) -> dict[str, int]:
    import deepspeed

    asked = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 3, **MODES[mode]},
    }
    engines: list[Any] = []

    def walk() -> Iterator[NamedTensor]:
        return (named for engine in engines for named in walk_deepspeed(engine))

    ledger = Ledger(torch.device("cuda", 0), walk, in_own_process=False)
    with ledger.tracking(), ledger.phase(StepKind.FIRST, Phase.INIT):
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        engines += deepspeed.initialize(model=model, config=asked, model_parameters=model.parameters())[:1]
    engine = engines[0]
    with ledger.tracking(engine.module):
        for _ in range(STEPS):
            with ledger.phase(StepKind.STEADY, Phase.BACKWARD):
                engine.backward(engine(torch.zeros(4, WIDTH, dtype=torch.bfloat16, device="cuda")).float().mean())
            with ledger.phase(StepKind.STEADY, Phase.STEP):
                engine.step()
    return {
        row.category.value: row.live_bytes
        for row in ledger.rows()
        if row.phase is Phase.STEP and row.place is Place.HOST
    }


def main() -> None:
    open_values()
    kernels.install()
    os.environ.update(
        RANK="0", WORLD_SIZE="8", LOCAL_RANK="0", LOCAL_SIZE="8", MASTER_ADDR="127.0.0.1", MASTER_PORT="1"
    )
    torch.distributed.init_process_group("nccl", store=HashStore(), rank=0, world_size=8)
    print(json.dumps(host_rows(sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()
