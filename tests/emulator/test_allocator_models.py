"""The models of torch's caching allocator, which predictions use, held against torch's own on the emulated GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.emulated import Emulated
from zerobench.memory.allocator_settings import allocator_model

ENDLESS = 10**15

TRAINING_LIKE = """
import json, random, torch
settings = torch.cuda.memory._set_allocator_settings
SIZES = (500, 3_000, 700_000, 2**20, 2**20 + 1, 3 << 20, 9 << 20, 11 << 20, 33_333_333, 70 << 20, 200 << 20, 555 << 20)
def play(seed):
    rng, live, steps = random.Random(seed), {}, []
    start = torch.cuda.memory_reserved()
    assert start == 0, start
    for key in range(600):
        if live and rng.random() < 0.48:
            dead = rng.choice(list(live))
            del live[dead]
            steps.append(["free", dead])
        elif rng.random() < 0.01:
            torch.cuda.empty_cache()
            steps.append(["empty", 0])
        else:
            size = int(rng.choice(SIZES) * rng.uniform(0.3, 1.5)) + 1
            live[key] = torch.empty(size, dtype=torch.uint8, device="cuda")
            steps.append(["malloc", key, size])
        stats = torch.cuda.memory_stats()
        steps[-1] += [stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]]
    live.clear()
    torch.cuda.empty_cache()
    return steps
print(json.dumps([play(seed) for seed in range(4)]))
"""


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_each_allocation_and_each_free_leaves_what_torch_s_own_allocator_holds(emulated: Emulated, conf: str) -> None:
    asked = {"PYTORCH_ALLOC_CONF": conf}
    for played in emulated(TRAINING_LIKE, gpu="B300", **asked):
        model: Any = allocator_model(ENDLESS, asked)
        for what, key, *more in played:
            if what == "malloc":
                model.malloc(key, more[0])
            elif what == "free":
                model.free(key)
            else:
                model.empty_cache()
            assert [model.allocated_bytes, model.reserved_bytes] == more[-2:], (what, key, more)
