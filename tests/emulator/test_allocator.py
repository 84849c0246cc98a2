"""torch's own caching allocator on the emulated GPU: its settings, counters, errors and snapshots are the real ones."""

from typing import Any

import pytest

from tests.tools.emulated import Emulated
from zerobench.config.hardware.overheads import overhead_of
from zerobench.estimate.allocator.allocator_settings import takes_latest

TOTAL = 143156 << 20
CONTEXT = overhead_of("H200", 1).context_bytes
MIB, GIB = 1 << 20, 1 << 30

NATIVE = """
import json, torch
from torch.cuda import memory
MIB, GIB = 1 << 20, 1 << 30
def make(size): return torch.empty(size, dtype=torch.uint8, device="cuda")
def used(): return torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
def fresh(settings=""):
    torch.cuda.empty_cache()
    if settings: memory._set_allocator_settings(settings)
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
def count(name): return torch.cuda.memory_stats()[name]
said = {}

x = make(10 * MIB)
said["first"] = [torch.cuda.mem_get_info()[1], used(), torch.cuda.memory_reserved()]
del x

fresh()
x = make(60 * GIB); del x
x = make(100 * GIB)
said["retried"] = [count("num_alloc_retries"), count("num_ooms"), used()]
try:
    make(60 * GIB)
except torch.cuda.OutOfMemoryError as error:
    said["refused"] = [str(error), count("num_alloc_retries"), count("num_ooms")]
del x

fresh("max_split_size_mb:200")
x = make(400 * MIB); del x
x = make(100 * MIB)
said["not_split"] = torch.cuda.memory_reserved()
del x

fresh("max_split_size_mb:200,roundup_power2_divisions:4")
x = make(1100 * MIB)
said["rounded"] = torch.cuda.memory_allocated()
del x

fresh("garbage_collection_threshold:0.5")
torch.cuda.set_per_process_memory_fraction(0.1)
kept = [make(GIB) for _ in range(8)]
del kept
x = make(2 * GIB)
said["collected"] = [torch.cuda.memory_reserved(), count("num_alloc_retries")]
torch.cuda.set_per_process_memory_fraction(1.0)
del x

fresh("expandable_segments:True")
x = make(GIB); del x
x = make(3 * GIB // 2)
segments = [s["is_expandable"] for s in memory._snapshot()["segments"]]
said["expanded"] = [torch.cuda.memory_reserved(), used(), all(segments), len(segments)]
y = make(50 * MIB); y[:4].copy_(torch.arange(4, dtype=torch.uint8))
said["copied"] = y[:4].cpu().tolist()
try:
    make(200 * GIB)
except torch.cuda.OutOfMemoryError as error:
    said["expandable_refused"] = [str(error), count("num_ooms")]
del x, y
torch.cuda.empty_cache()
said["return_memory"] = [torch.cuda.memory_reserved(), used()]

fresh("expandable_segments:False")
memory._record_memory_history()
def named(): return make(64 * MIB)
x = named(); del x
trace = memory._snapshot()["device_traces"][0]
events = [(e["action"], e["size"], any(f["name"] == "named" for f in e["frames"])) for e in trace]
said["history"] = [e for e in events if e[1] == 64 * MIB]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def native(emulated: Emulated) -> dict[str, Any]:
    return dict(emulated(NATIVE))


def test_the_device_has_the_catalogues_memory_less_the_context_and_what_torch_reserves(native):
    total, used, reserved = native["first"]
    assert total == TOTAL
    assert reserved == 10 * MIB  # from 10 MiB on whole pages of 2 MiB
    assert used == CONTEXT + reserved


def test_an_allocation_that_fits_once_the_cache_is_given_back_is_retried(native):
    assert native["retried"] == [1, 0, CONTEXT + 100 * GIB]


def test_one_that_does_not_fit_is_refused_with_torchs_own_sentence_and_counters(native):
    sentence, retries, ooms = native["refused"]
    assert sentence.startswith(
        "CUDA out of memory. Tried to allocate 60.00 GiB. GPU 0 has a total capacity of 139.80 GiB"
    )
    assert f"this process has {(CONTEXT + 100 * GIB) / GIB:.2f} GiB memory in use" in sentence
    assert "100.00 GiB is allocated by PyTorch, and 0 bytes is reserved" in sentence
    assert (retries, ooms) == (2, 1)


def test_blocks_above_max_split_size_are_not_split(native):
    assert native["not_split"] == 500 * MIB


def test_sizes_are_rounded_to_parts_of_powers_of_two(native):
    assert native["rounded"] == 1280 * MIB


def test_the_garbage_collector_frees_unused_blocks_above_its_threshold(native):
    reserved, retries = native["collected"]
    assert reserved < 10 * GIB
    assert retries == 0


def test_expandable_segments_grow_in_place_and_are_counted_by_what_is_mapped(native):
    reserved, used, expandable, segments = native["expanded"]
    assert 1536 * MIB <= reserved <= 1556 * MIB
    assert used == CONTEXT + reserved
    assert expandable
    assert segments == 1
    assert native["copied"] == [0, 1, 2, 3]


def test_expandable_segments_are_refused_what_the_device_has_not_and_give_back_what_they_had(native):
    sentence, ooms = native["expandable_refused"]
    assert sentence.startswith("CUDA out of memory. Tried to allocate 200.00 GiB")
    assert ooms == 1
    assert native["return_memory"] == [0, CONTEXT]


def test_the_allocators_history_names_the_function_that_allocated(native):
    assert native["history"] == [
        ["segment_alloc", 64 * MIB, True],
        ["alloc", 64 * MIB, True],
        ["free_requested", 64 * MIB, False],
        ["free_completed", 64 * MIB, False],
    ]


POOLED = """
import json, torch
MIB, GIB = 1 << 20, 1 << 30
x = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
said = [torch.cuda.get_allocator_backend(), torch.cuda.memory_allocated()]
try:
    torch.empty(200 * GIB, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    said.append(str(error).splitlines()[0])
del x
torch.cuda.synchronize()
torch.cuda.empty_cache()
said.append(torch.cuda.max_memory_allocated())
print(json.dumps([*said, torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]]))
"""


def test_the_backend_of_cudas_own_pools_allocates_refuses_and_gives_back(emulated):
    backend, allocated, sentence, peak, used = emulated(POOLED, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert backend == "cudaMallocAsync"
    assert allocated == peak == 100 * MIB
    assert sentence == "Allocation on device 0 would exceed allowed memory. (out of memory)"
    assert used == CONTEXT


SEGMENTS = """
import json, mmap, sys, torch
held = [mmap.mmap(-1, (7 + i) << 20) for i in range(int(sys.argv[1]))]
first = [torch.empty(40 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
del first[1:3], held[::2]  # holes of two kinds
torch.cuda.empty_cache()
pinned = torch.empty(24 << 20, dtype=torch.uint8, pin_memory=True)
second = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
print(json.dumps([tensor.data_ptr() for tensor in (*first, *second)]))
"""


def test_segments_lie_at_falling_addresses_that_are_the_same_in_every_run(emulated):
    addresses = emulated(SEGMENTS, "0")
    assert addresses == sorted(addresses, reverse=True)
    assert emulated(SEGMENTS, "33") == addresses


EQUAL = """
import json, torch
segments = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
addresses = [tensor.data_ptr() for tensor in segments]
for at in (1, 2, 0):
    segments[at] = None
taken = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
print(json.dumps(addresses.index(taken.data_ptr())))
"""


def test_of_equal_free_segments_torch_takes_the_one_that_the_model_takes(emulated, emulator):
    assert emulated(EQUAL) == (2 if takes_latest(emulator.torch) else 0)
