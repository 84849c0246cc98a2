"""One rank of a training run that alternates blocks of steps with the memory ledger on and off (blocks.py).

    deepspeed benchmarks/ledger_blocks.py JOB.json

With it a step is what it is in a trial's memory steps: every storage counted from birth to death, phases accounted for
at their ends. Turning it on, which looks up every tensor there is, comes before the clock, as in a trial.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

from benchmarks.blocks import Training, run_blocks
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.rank.ledger.engine_tensors import walk_deepspeed
from zerobench.rank.ledger.ledger import Ledger


def ledger_block(training: Training, _pair: int) -> tuple[float, int]:
    """Seconds of a block under the ledger, and how many rows it had."""
    engine = training.engine
    ledger = Ledger(torch.device(get_accelerator().current_device_name()), lambda: walk_deepspeed(engine))
    with ledger.tracking(engine.module):
        seconds = training.timed_block(lambda: tracked_step(engine, ledger, next(training.data)))
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


if __name__ == "__main__":
    run_blocks(ledger_block, "rows")
