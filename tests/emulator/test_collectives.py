"""Small collectives of the emulated NCCL answer as if all ranks were alike, whatever the number of ranks."""

from typing import Any

import pytest

from tests.tools.emulated import Emulated

PROGRAM = """
import json, sys, time, torch, torch.distributed as dist
rank, ranks = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(0)
device = torch.device("cuda:0")


class Told(dist.Store):
    "Has the id of every communicator, as if another rank had written it."

    def __init__(self):
        super().__init__()
        self.kept = {}

    def set(self, key, value): self.kept[key] = value
    def get(self, key): return self.kept.get(key, bytes(128))
    def check(self, keys): return all(key in self.kept for key in keys)
    def wait(self, keys, timeout=None): pass
    def add(self, key, amount): return ranks
    def delete_key(self, key): return True


store = Told()  # torch keeps its other half alone
dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks)
said = {}

def reduced(op, *values, dtype=torch.float32):
    x = torch.tensor(values, device=device, dtype=dtype)
    dist.all_reduce(x, op=op)
    return x.tolist()

for name in ("SUM", "AVG", "MAX", "MIN"):
    said[name] = reduced(getattr(dist.ReduceOp, name), 1.5, -2.0)
for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.float64, torch.uint8):
    said[str(dtype)] = reduced(dist.ReduceOp.SUM, 1, 3, dtype=dtype)
said["large_int"] = reduced(dist.ReduceOp.SUM, 2**52 + 1, dtype=torch.int64)
said["scaled"] = reduced(dist._make_nccl_premul_sum(0.5), 3.0)

own = torch.tensor([rank + 1, 7], device=device)
parts = [torch.zeros_like(own) for _ in range(ranks)]
dist.all_gather(parts, own)
said["gathered"] = all(part.tolist() == [rank + 1, 7] for part in parts)
whole = torch.arange(2 * ranks).to(device)
part = torch.zeros(2, dtype=torch.long, device=device)
dist.reduce_scatter_tensor(part, whole)
said["scattered"] = part.tolist()
whole = torch.zeros(2 * ranks, dtype=torch.long, device=device)
whole[2 * rank : 2 * rank + 2].copy_(torch.tensor([5, 6]))
dist.all_gather_into_tensor(whole, whole[2 * rank : 2 * rank + 2])
said["in_place"] = whole.tolist() == [5, 6] * ranks
sent = torch.tensor([4, 2], device=device)
dist.broadcast(sent, src=rank)
said["broadcast"] = sent.tolist()
objects = [None] * ranks
dist.all_gather_object(objects, {"rank": rank, "text": "x" * 3000})
said["objects"] = all(one == {"rank": rank, "text": "x" * 3000} for one in objects)
to = torch.zeros(ranks, dtype=torch.long, device=device)
dist.all_to_all_single(to, torch.arange(ranks).to(device))
said["all_to_all"] = sorted(set(to.tolist()))
group = dist.new_group([rank, (rank + 1) % ranks])
x = torch.tensor([3.0], device=device)
dist.all_reduce(x, group=group)
said["group"] = x.item()
ops = [dist.P2POp(dist.isend, x, (rank + 1) % ranks), dist.P2POp(dist.irecv, torch.empty_like(x), (rank - 1) % ranks)]
for work in dist.batch_isend_irecv(ops): work.wait()
dist.barrier()

big = torch.empty(1 << 30, dtype=torch.uint8, device=device)
dist.all_reduce(big)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).to(device)
ddp = torch.nn.parallel.DistributedDataParallel(model)
ddp(torch.randn(2, 64, device=device)).sum().backward()
said["ddp"] = [type(ddp).__name__, all(p.grad is not None for p in model.parameters())]

def later():
    "Wait for the collective that came after it, by a stream."
    dist.all_reduce(torch.zeros(1, device=device), async_op=True).wait()
    torch.cuda.current_stream().synchronize()

def held(way):
    "Bytes of a gathered tensor that torch has in use when nobody else holds it: at once, and NCCL having looked again."
    before = torch.cuda.memory_allocated()
    work = dist.all_gather_into_tensor(
        torch.empty(ranks << 12, device=device), torch.empty(1 << 12, device=device), async_op=True
    )
    if way == "work":
        work.wait()
    del work
    at_once, begun = torch.cuda.memory_allocated() - before, time.monotonic()
    WAYS[way]()
    while torch.cuda.memory_allocated() > before and time.monotonic() < begun + (60 if way in ENDS else 0.6):
        time.sleep(0.05)
        dist.all_reduce(x)  # NCCL's watchdog puts aside what it found done, for the next collective to let go of
    return at_once, torch.cuda.memory_allocated() - before

dist.all_reduce(x)
nothing = lambda: None
ENDS = {"later": later, "device": torch.cuda.synchronize}
WAYS = {"work": nothing, "nobody": nothing, "stream beside": torch.cuda.current_stream().synchronize, **ENDS}
said["held"] = {}
for way in WAYS:
    said["held"][way] = held(way)
    torch.cuda.synchronize()
    time.sleep(0.3)
    dist.all_reduce(x)
from pathlib import Path
held = [line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
said["resident"] = int(held[0][1])  # of this program alone: getrusage's goes on from whoever started it
dist.destroy_process_group()
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=[(3, 8), (0, 1024)], ids=["fourth-of-8", "first-of-1024"])
def said(request, emulated: Emulated) -> tuple[int, int, dict[str, Any]]:
    rank, ranks = request.param
    return rank, ranks, emulated(PROGRAM, str(rank), str(ranks))


def test_sums_are_as_many_times_ones_own_as_there_are_ranks_and_other_reductions_ones_own(said):
    _, ranks, seen = said
    assert seen["SUM"] == [1.5 * ranks, -2.0 * ranks]
    assert seen["AVG"] == seen["MAX"] == seen["MIN"] == [1.5, -2.0]
    for dtype in ("bfloat16", "float16", "int64", "float64"):
        assert seen[f"torch.{dtype}"] == [ranks, 3 * ranks]
    assert seen["torch.uint8"] == [ranks % 256, 3 * ranks % 256]
    assert seen["large_int"] == [(2**52 + 1) * ranks]
    assert seen["scaled"] == [1.5 * ranks]


def test_gathers_repeat_ones_own_part_and_scatters_reduce_it(said):
    rank, ranks, seen = said
    assert seen["gathered"]
    assert seen["in_place"]
    assert seen["objects"]
    assert seen["scattered"] == [2 * rank * ranks, (2 * rank + 1) * ranks]


def test_what_a_rank_broadcasts_stays_and_all_to_all_gives_what_it_would_send_itself(said):
    rank, _, seen = said
    assert seen["broadcast"] == [4, 2]
    assert seen["all_to_all"] == [rank]


def test_groups_of_their_own_have_their_own_number_of_ranks(said):
    assert said[2]["group"] == 6.0


def test_ddp_agrees_with_itself_and_large_messages_cost_no_memory(said):
    assert said[2]["ddp"] == ["DistributedDataParallel", True]
    assert said[2]["resident"] < 1 << 20


def test_nccl_holds_the_tensors_of_a_collective_until_somebody_waits_for_it_however_long_that_takes(said):
    _, ranks, seen = said
    parts = 4 * (ranks << 12) + (4 << 12)
    stays, goes = [parts, parts], [parts, 0]
    assert seen["held"] == {"work": [0, 0], "nobody": stays, "stream beside": stays, "later": goes, "device": goes}
