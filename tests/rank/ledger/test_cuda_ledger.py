"""The ledger on torch's own CUDA allocator, over the emulated GPU: every byte named, and those that are not, seen."""

from typing import Any

import pytest

PLANTED = 50_000_000

PROGRAM = """
import json, sys
import torch
from zerobench.rank.ledger.cuda import pinned_bytes
from zerobench.rank.ledger.engine_tensors import walk_module
from zerobench.rank.ledger.ledger import Ledger
from zerobench.common.vocabulary import Category, Phase, Place, StepKind

planted = int(sys.argv[1])
device = torch.device("cuda", 0)
layer = torch.nn.Linear(2048, 2048, device=device)
ledger = Ledger(device, lambda: walk_module(layer), in_own_process=False)
with ledger.tracking(layer):
    for kind in StepKind:
        inputs = torch.ones(512, 2048, device=device)
        ledger.name_inputs([inputs])
        waiting = torch.empty(200_000_000, dtype=torch.uint8, device=device)
        waiting.record_stream(torch.cuda.Stream())
        del waiting  # given back; to be had again once the other stream has passed it
        with ledger.phase(kind, Phase.FORWARD):
            loss = layer(inputs).sum()
            ledger.mark_loss(loss)
        torch.cuda.reset_peak_memory_stats(device)
        with ledger.phase(kind, Phase.BACKWARD):
            loss.backward()
            if planted and kind is StepKind.STEADY:
                torch.cuda.caching_allocator_alloc(planted, device)
            torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(20_000_000, device))  # as kernels do
        last = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        layer.zero_grad()
rows = {
    f"{row.step} {row.phase} {row.category}": [row.live_bytes, row.at_peak_bytes]
    for row in ledger.rows()
    if row.place is Place.DEVICE
}
none = pinned_bytes()
pinned = torch.empty(2**20, dtype=torch.uint8, pin_memory=True)
print(json.dumps({"rows": rows, "allocator": last, "pinned": [none, pinned_bytes()]}))
"""


@pytest.fixture(scope="module")
def seen(emulated) -> dict[int, dict[str, Any]]:
    return {planted: emulated(PROGRAM, str(planted), num_gpus=2) for planted in (0, PLANTED)}


@pytest.mark.parametrize("planted", [0, PLANTED])
def test_the_total_is_the_allocators_own(seen, planted):
    assert seen[planted]["rows"]["steady backward total"] == seen[planted]["allocator"]


def unattributed(seen: dict[int, dict[str, Any]], planted: int) -> list[int]:
    sizes: list[int] = seen[planted]["rows"]["steady backward unattributed"]
    return sizes


def test_but_for_scalars_of_the_program_itself_nothing_is_without_a_name(seen):
    assert max(map(abs, unattributed(seen, 0))) <= 16
    assert seen[0]["rows"]["steady backward workspaces"] == [2 * 2**25] * 2
    assert seen[0]["rows"]["steady backward temporaries"][1] >= 20_000_000


def test_fifty_megabytes_that_nobody_named_are_seen(seen):
    (live, at_peak), (planted_live, planted_at_peak) = (unattributed(seen, planted) for planted in (0, PLANTED))
    assert planted_live - live == PLANTED
    assert abs(planted_at_peak - at_peak - PLANTED) <= 16


def test_a_block_that_another_stream_still_uses_is_no_byte_without_a_name(seen):
    rows = seen[0]["rows"]
    output = 4 * 512 * 2048  # which the program made, and no package that is known
    assert rows["first forward unattributed"][1] - output <= 16
    assert rows["first forward allocator_rounding"][1] >= 0


def test_page_locked_memory_is_what_its_own_allocator_holds(seen):
    assert seen[0]["pinned"] == [0, 2**20]


PAGE_LOCKED = """
import json
import sys

import torch

from zerobench.rank.ledger.ledger import Ledger
from zerobench.common.vocabulary import Category, Phase, Place, StepKind

def given_out():
    stats = torch.cuda.host_memory_stats()
    return stats["active_bytes.current"], stats["active_bytes.peak"]

device = torch.device("cuda", 0)
before = torch.empty(5_000_000, dtype=torch.uint8, pin_memory=True)
ledger = Ledger(device, list, in_own_process=sys.argv[1] == "own")
with ledger.tracking():
    with ledger.phase(StepKind.FIRST, Phase.FORWARD):
        kept = torch.empty(3_000_000, dtype=torch.uint8).pin_memory()
        same = torch.from_numpy(kept.numpy()) if sys.argv[1] == "own" else None  # another storage on the same block
        gone = torch.empty(9_000_000, dtype=torch.uint8, pin_memory=True)
        del gone
        usual = torch.empty(1_000_000, dtype=torch.uint8)
    seen = given_out()
    del kept, same
    held = ledger.host_standing(Phase.FORWARD, "now").by_category
    held = sum(size for category, size in held.items() if category is not Category.REST_OF_PROCESS)
    holding = given_out()[0]
rows = {row.category: row for row in ledger.rows() if row.place is Place.HOST}
rest = rows[Category.REST_OF_PROCESS].live_bytes if Category.REST_OF_PROCESS in rows else 0
total = rows[Category.TOTAL]
print(json.dumps({
    "rows": [total.live_bytes - rest, total.at_peak_bytes - rest],
    "allocator": seen,
    "rounding": rows[Category.ALLOCATOR_ROUNDING].live_bytes,
    "held": [held, holding],
    "process": [total.live_bytes, *(row.rss_bytes for row in ledger.process_rows())],
}))
"""
USUAL = 1_000_000
"""Bytes beside page-locked memory: what the program makes last, and a handful of torch's own."""
ROUNDED_UP = 2**23 - 5_000_000 + 2**22 - 3_000_000


@pytest.mark.parametrize("whose", ["own", "emulated"])
@pytest.mark.parametrize(
    ("conf", "rounding"), [("", ROUNDED_UP), ("pinned_max_round_threshold_mb:4", 2**22 - 3_000_000)]
)
def test_page_locked_memory_is_counted_in_the_blocks_that_torchs_allocator_gives_out(emulated, whose, conf, rounding):
    seen = emulated(PAGE_LOCKED, whose, PYTORCH_ALLOC_CONF=conf)
    assert seen["rounding"] == rounding
    for of_ledger, of_allocator in zip(seen["rows"], seen["allocator"], strict=True):
        assert 0 <= of_ledger - of_allocator <= USUAL + 64
    held, holding = seen["held"]
    assert 0 <= held - holding <= USUAL + 64
    if whose == "own":
        total, resident = seen["process"]
        assert total == pytest.approx(resident, abs=2**20)  # rounding is in it once
