"""What gloo's collectives of two ranks take by themselves on this machine, and memory that is mapped anew.

    python benchmarks/timing/gloo_times.py    # writes zerobench/estimate/time/gloo.csv: two minutes on an idle machine

No training: each collective by kind and size, the median of 21 after a barrier, in the calmer of two rounds; between
two sizes a straight line. A collective takes more than what gloo copies: where there are no more processors than ranks
its threads wait for each other and for the ranks' own, and the blocks of 32 MiB or more that all-gather and
reduce-scatter make for themselves are mapped anew, their pages filled with zeros as they are written.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch
from torch import distributed

from benchmarks.csv_rows import as_csv
from zerobench.estimate.time.cpu_ranks import COLLECTIVES_FILE, MAPPING, RANKS, Timed

_TIMES, _ROUNDS = 21, 2
_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 25, 40_000_000, 1 << 26)
"""In bytes of the whole message; 40 MB is what small models pass at once."""


def _collectives(rank: int, message_bytes: int) -> Mapping[str, Callable[[], object]]:
    whole, part = torch.randn(message_bytes // 4), torch.randn(message_bytes // 4 // RANKS)
    return {
        "all_reduce": lambda: distributed.all_reduce(whole),
        "all_gather": lambda: distributed.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: distributed.broadcast(whole, 0),
        "reduce": lambda: distributed.reduce(whole, 0),
        "send": lambda: distributed.send(whole, 1) if rank == 0 else distributed.recv(whole, 0),
    }


def _median_s(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Of several times, after a first that is not counted."""
    work()
    times = []
    for _ in range(_TIMES):
        before()
        begun_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun_s)
    return median(times)


def _rank(rank: int, store: str, sizes: Sequence[int], results: SimpleQueue[Timed]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    for nbytes in sizes:
        for kind, call in _collectives(rank, nbytes).items():
            seconds = _median_s(call, distributed.barrier)
            if rank == 0:
                results.put(Timed(kind, nbytes, round(1e9 * seconds)))
    distributed.barrier()
    distributed.destroy_process_group()


def measured(sizes: Sequence[int] = _SIZES) -> list[Timed]:
    """All rows, anew."""
    fastest: dict[tuple[str, int], int] = {}
    for _ in range(_ROUNDS):
        with tempfile.TemporaryDirectory(prefix="zerobench-") as place:
            context = multiprocessing.get_context("spawn")
            results: SimpleQueue[Timed] = context.SimpleQueue()
            ranks = [
                context.Process(target=_rank, args=(rank, str(Path(place, "store")), sizes, results))
                for rank in range(RANKS)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            if any(process.exitcode for process in ranks):
                raise SystemExit("a rank has failed; its traceback is above")
            while not results.empty():
                row = results.get()
                key = row.kind, row.message_bytes
                fastest[key] = min(row.duration_ns, fastest.get(key, row.duration_ns))
    rows = [Timed(*key, duration_ns) for key, duration_ns in sorted(fastest.items())]
    return [*rows, _mapping()]


def _mapping(nbytes: int = 40_000_000) -> Timed:
    """Of a block of this size, which malloc maps anew each time."""
    torch.set_num_threads(1)
    source = torch.randn(nbytes // 4)
    there = torch.empty_like(source)
    more_s = _median_s(source.clone) - _median_s(lambda: there.copy_(source))
    return Timed(MAPPING, nbytes, round(1e9 * more_s))


if __name__ == "__main__":
    COLLECTIVES_FILE.write_text(as_csv(Timed, measured()), encoding="utf-8")
