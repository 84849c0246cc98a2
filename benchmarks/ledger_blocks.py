"""One rank of a training run that alternates blocks of steps with the memory ledger on and off.

    deepspeed benchmarks/ledger_blocks.py JOB.json

As sampler_blocks.py does it, in one process, so that nothing differs between the blocks but the ledger. With it a step
is what it is in a trial's memory steps: every storage counted from birth to death, phases accounted for at their ends.
Turning it on, which looks up every tensor there is, comes before the clock, as in a trial.
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
from benchmarks.sampler_blocks import timed_block
from zerobench.memory.engine_tensors import walk_deepspeed
from zerobench.memory.ledger import Ledger
from zerobench.records import Phase, StepKind


def ledger_block(engine: Any, data: Iterator[torch.Tensor], steps: int) -> tuple[float, int]:
    """Seconds of `steps` steps under the ledger, device-synchronised at both ends, and how many rows it had."""
    ledger = Ledger(torch.device(get_accelerator().current_device_name()), lambda: walk_deepspeed(engine))
    with ledger.tracking(engine.module):
        tracked_step(engine, ledger, next(data))  # settles, as in the other kind of block
        get_accelerator().synchronize()
        torch.distributed.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            tracked_step(engine, ledger, next(data))
        get_accelerator().synchronize()
        seconds = time.perf_counter() - begin
    return seconds, len(ledger.rows())


def tracked_step(engine: Any, ledger: Ledger, batch: torch.Tensor) -> None:
    """One optimizer step, each of its phases accounted for."""
    ledger.name_inputs([batch])
    with ledger.phase(StepKind.STEADY, Phase.FORWARD):
        loss: torch.Tensor = engine(input_ids=batch, labels=batch).loss
        ledger.mark_loss(loss)
    with ledger.phase(StepKind.STEADY, Phase.BACKWARD):
        engine.backward(loss)
    with ledger.phase(StepKind.STEADY, Phase.STEP):
        engine.step()


def main() -> None:
    """Train in blocks; write the seconds of each beside the job."""
    path = Path(sys.argv[1])
    job = json.loads(path.read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    engine = build(job)
    data = batches(job, rank, world_size)
    for _ in range(job["untimed_steps"]):
        train_step(engine, next(data))
    blocks: dict[str, Any] = {"pid": os.getpid(), "on_s": [], "off_s": [], "rows": []}
    for pair in range(job["pairs"]):
        for on in (False, True) if pair % 2 else (True, False):
            if not on:
                blocks["off_s"].append(timed_block(engine, data, job["timed_steps"]))
                continue
            seconds, rows = ledger_block(engine, data, job["timed_steps"])
            blocks["on_s"].append(seconds)
            blocks["rows"].append(rows)
    path.with_name(f"{path.name}.rank{rank}").write_text(json.dumps(blocks), encoding="utf-8")
    torch.distributed.barrier()
    unlink_shared_memory(rank)
    os._exit(0)  # some builds of torch abort in an ordinary exit, after right results


if __name__ == "__main__":
    main()
