"""A training run that alternates blocks of steps with something on and off, in one process for each rank.

Nothing differs between the two kinds of block but what is turned on: no other start of the engine, no other place in
memory. The kind that comes first alternates from pair to pair, so that drift cancels.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from benchmarks.bare_loop import batches, build, train_step, unlink_shared_memory

SETTLING_STEPS = 1
"""Steps of each block before its clock: what was just turned on has taken the cores from the ranks."""


@dataclass(frozen=True)
class Training:
    """What the blocks of one rank train."""

    engine: Any
    data: Iterator[torch.Tensor]
    job: dict[str, Any]
    path: Path
    """The job's file; what is left lies beside it."""
    rank: int

    def plain_step(self) -> None:
        """One optimizer step with nothing on."""
        train_step(self.engine, next(self.data))

    def timed_block(self, step: Callable[[], None]) -> float:
        """Seconds of the job's timed steps, device-synchronised at both ends; ranks start together."""
        for _ in range(SETTLING_STEPS):
            step()
        get_accelerator().synchronize()
        torch.distributed.barrier()
        begin = time.perf_counter()
        for _ in range(self.job["timed_steps"]):
            step()
        get_accelerator().synchronize()
        return time.perf_counter() - begin


def run_blocks(block_on: Callable[[Training, int], tuple[float, Any]], key: str) -> None:
    """Train in blocks; write the seconds of each beside the job, and under `key` what `block_on` says of its own.

    `block_on` gets the number of the pair. Ends the process.
    """
    path = Path(sys.argv[1])
    job = json.loads(path.read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    training = Training(build(job), batches(job, rank, world_size), job, path, rank)
    for _ in range(job["untimed_steps"]):
        training.plain_step()
    blocks: dict[str, Any] = {"pid": os.getpid(), "on_s": [], "off_s": [], key: []}
    for pair in range(job["pairs"]):
        for on in (False, True) if pair % 2 else (True, False):
            if not on:
                blocks["off_s"].append(training.timed_block(training.plain_step))
                continue
            seconds, record = block_on(training, pair)
            blocks["on_s"].append(seconds)
            blocks[key].append(record)
    path.with_name(f"{path.name}.rank{rank}").write_text(json.dumps(blocks), encoding="utf-8")
    torch.distributed.barrier()
    unlink_shared_memory(rank)
    os._exit(0)  # some builds of torch abort in an ordinary exit, after right results
