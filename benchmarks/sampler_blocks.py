"""One rank of a training run that alternates blocks of steps with the NVML sampler on and off (blocks.py).

    deepspeed benchmarks/sampler_blocks.py JOB.json

The sampler is started before its block's clock and stopped after it, as in a trial, where it starts before torch is
even imported.

It watches the devices that the ranks may use, as in a trial, or the first `devices` of the node where the job says so.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.blocks import Training, run_blocks
from benchmarks.processes import cpu_seconds
from zerobench.rank.nvml.nvml import list_devices
from zerobench.rank.nvml.sampler import Sampler
from zerobench.records.folder import TrialFolder

PATIENCE_S = 60.0


def sampled_block(training: Training, pair: int) -> tuple[float, dict[str, Any] | None]:
    """Seconds of a block with the node's sampler running, started by rank 0; what it says of itself and took."""
    folder = training.path.with_name(f"block{pair}")
    sampler = started_sampler(folder, training.job["devices"]) if training.rank == 0 else None
    torch.distributed.barrier()
    from_s, cpu_from_s = time.monotonic(), _cpu_seconds(sampler)
    seconds = training.timed_block(training.plain_step)
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


if __name__ == "__main__":
    run_blocks(sampled_block, "samplers")
