"""The models of torch's caching allocator, which predictions use, held against torch's own on the emulated GPU."""

from typing import Any

import pytest

from tests.tools.emulated import Emulated
from zerobench.estimate.allocator.allocator_settings import allocator_model

ENDLESS = 10**15

TRAINING_LIKE = """
import json, random, torch
from zerobench.rank.ledger.cuda import start_phase
from zerobench.rank.ledger.allocator_snapshot import peak_occupied
SIZES = (500, 3_000, 700_000, 2**20, 2**20 + 1, 3 << 20, 9 << 20, 11 << 20, 33_333_333, 70 << 20, 200 << 20, 555 << 20)
def play(seed):
    rng, live, steps = random.Random(seed), {}, []
    start_phase(torch.device("cuda", 0))
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
        if key == 300:
            start_phase(torch.device("cuda", 0))  # a later phase begins with what stands
    snapshot = torch.cuda.memory._snapshot()
    occupied = peak_occupied(snapshot["device_traces"][0], snapshot["segments"], torch.cuda.memory_stats())
    cut_off = peak_occupied(snapshot["device_traces"][0][-9:], snapshot["segments"], torch.cuda.memory_stats())
    live.clear()
    torch.cuda.empty_cache()
    return steps, occupied, cut_off
print(json.dumps([play(seed) for seed in range(4)]))
"""


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_each_allocation_and_each_free_leaves_what_torch_s_own_allocator_holds(emulated: Emulated, conf: str) -> None:
    asked = {"PYTORCH_ALLOC_CONF": conf}
    plays = emulated(TRAINING_LIKE, gpu="B300", **asked)
    assert bool(conf) or any(cut_off > occupied for _, occupied, cut_off in plays)
    for played, occupied, cut_off in plays:
        model: Any = allocator_model(ENDLESS, asked)
        for index, (what, key, *more) in enumerate(played):
            if what == "malloc":
                model.malloc(key, more[0])
            elif what == "free":
                model.free(key)
            else:
                model.empty_cache()
            assert [model.allocated_bytes, model.reserved_bytes] == more[-2:], (what, key, more)
            if index == 300:
                model.reset_peaks()
        assert cut_off >= occupied >= model.peak_occupied_bytes
        assert bool(conf) or occupied == model.peak_occupied_bytes  # of expandable ones pages are given back singly
