"""Collectives of gloo between two ranks under the ledger, beside the C library's count; started by test_counted.py."""

import sys

import torch
import torch.distributed as dist

from tests.rank.ledger.counted_ledger import Counted
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.rank.ledger.recorder import settle_collectives

MILLION = 1_000_000


def main(store: str, rank: int) -> None:
    """Gather four megabytes of each rank, and reduce eight."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    counted = Counted("gloo", lambda: ())
    with counted.ledger.tracking():
        for phase, collective in ((Phase.FORWARD, gather), (Phase.BACKWARD, reduce)):
            with counted.phase(StepKind.STEADY, phase):
                collective()
                settle_collectives()
    counted.tell()
    dist.destroy_process_group()


def gather() -> None:
    dist.all_gather_into_tensor(torch.empty(2 * MILLION), torch.ones(MILLION))


def reduce() -> None:
    dist.reduce_scatter_tensor(torch.empty(MILLION), torch.ones(2 * MILLION))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
