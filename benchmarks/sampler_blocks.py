"""One rank of a training run that alternates blocks of steps with the NVML sampler on and off.

    deepspeed benchmarks/sampler_blocks.py JOB.json

Both kinds of block are timed in one process, so that nothing differs between them but the sampler: no other start of
the engine, no other place in memory. The kind that comes first alternates from pair to pair, so that drift cancels. The
sampler is started before its block's clock and stopped after it, as in a trial, where it starts before torch is even
imported.

It watches the devices that the ranks may use, as in a trial, or the first `devices` of the node where the job says so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from benchmarks.bare_loop import batches, build, train_step, unlink_shared_memory
from benchmarks.processes import cpu_seconds
from zerobench.folder import TrialFolder
from zerobench.memory.nvml import list_devices
from zerobench.memory.sampler import Sampler

SETTLING_STEPS = 1
"""Steps of each block before its clock: the sampler's start has taken the cores from the ranks."""
PATIENCE_S = 60.0


def timed_block(engine: Any, data: Iterator[torch.Tensor], steps: int) -> float:
    """Seconds of `steps` steps, device-synchronised at both ends; ranks start together."""
    for _ in range(SETTLING_STEPS):
        train_step(engine, next(data))
    get_accelerator().synchronize()
    torch.distributed.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        train_step(engine, next(data))
    get_accelerator().synchronize()
    return time.perf_counter() - begin


def sampled_block(
    engine: Any, data: Iterator[torch.Tensor], job: dict[str, Any], folder: Path, rank: int
) -> tuple[float, dict[str, Any] | None]:
    """The same with the node's sampler running, started by rank 0; and what the sampler says of itself and took."""
    sampler = started_sampler(folder, job["devices"]) if rank == 0 else None
    torch.distributed.barrier()
    from_s, cpu_from_s = time.monotonic(), _cpu_seconds(sampler)
    seconds = timed_block(engine, data, job["timed_steps"])
    wall_s, cpu_s = time.monotonic() - from_s, _cpu_seconds(sampler) - cpu_from_s
    torch.distributed.barrier()
    if sampler is None:
        return seconds, None
    return seconds, {"summary": sampler.stop().model_dump(mode="json"), "cores": cpu_s / wall_s}


def started_sampler(folder: Path, devices: int | None) -> Sampler:
    """A sampler of the first `devices` of the node, or of those that the ranks may use, with its baseline taken."""
    uuids = None if devices is None else [device.uuid for device in list_devices().devices[:devices]]
    folder.mkdir()
    sampler = Sampler.start(TrialFolder(folder), 0, uuids)
    if not sampler.wait_ready(PATIENCE_S):
        raise TimeoutError(f"the sampler took no baseline within {PATIENCE_S} s")
    return sampler


def _cpu_seconds(sampler: Sampler | None) -> float:
    """What the sampler's process has taken; nothing where there is none, as where it has no device."""
    try:
        return 0.0 if sampler is None or sampler.pid is None else cpu_seconds(sampler.pid)
    except OSError:
        return 0.0


def main() -> None:
    """Train in blocks; write the seconds of each and the samplers' summaries beside the job."""
    path = Path(sys.argv[1])
    job = json.loads(path.read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    engine = build(job)
    data = batches(job, rank, world_size)
    for _ in range(job["untimed_steps"]):
        train_step(engine, next(data))
    blocks: dict[str, Any] = {"pid": os.getpid(), "on_s": [], "off_s": [], "samplers": []}
    for pair in range(job["pairs"]):
        for on in (False, True) if pair % 2 else (True, False):
            if not on:
                blocks["off_s"].append(timed_block(engine, data, job["timed_steps"]))
                continue
            seconds, told = sampled_block(engine, data, job, path.with_name(f"block{pair}"), rank)
            blocks["on_s"].append(seconds)
            blocks["samplers"].append(told)
    path.with_name(f"{path.name}.rank{rank}").write_text(json.dumps(blocks), encoding="utf-8")
    torch.distributed.barrier()
    unlink_shared_memory(rank)
    os._exit(0)  # some builds of torch abort in an ordinary exit, after right results


if __name__ == "__main__":
    main()
