"""A ledger beside the C library's own count of what torch's CPU allocator takes (counted_malloc.c), phase by phase.

For processes that test_counted.py starts with that count preloaded.
"""

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.ledger import Ledger


class Counted:
    """A ledger, and the count of the C library beside it."""

    def __init__(self, name: str, walk: Callable[[], Iterable[NamedTensor]]) -> None:
        self.name = name
        self.ledger = Ledger(torch.device("cpu"), walk)
        self.counts: dict[tuple[StepKind, Phase], tuple[int, int]] = {}
        counter = ctypes.CDLL(None)
        self.total, self.peak = counter.counted_total, counter.counted_peak
        self.total.restype = self.peak.restype = ctypes.c_int64
        self.reset = counter.counted_reset_peak

    @contextmanager
    def phase(self, step: StepKind, phase: Phase) -> Iterator[None]:
        """A phase under both."""
        with self.ledger.phase(step, phase):
            self.reset()
            yield
            self.counts[step, phase] = (self.total(), self.peak())

    def tell(self) -> None:
        """Print a line of JSON for each phase."""
        for (step, phase), (live, peak) in self.counts.items():
            rows = {
                (row.place, row.category): row for row in self.ledger.rows() if (row.step, row.phase) == (step, phase)
            }
            total = rows[Place.DEVICE, Category.TOTAL]
            workspace = rows.get((Place.DEVICE, Category.KERNEL_WORKSPACE))
            told = {
                "model": self.name,
                "step": step,
                "phase": phase,
                "counted": [live, peak],
                "said": [total.live_bytes, total.at_peak_bytes],
                "workspace": 0 if workspace is None else workspace.own_peak_bytes,
                "unattributed": rows[Place.DEVICE, Category.UNATTRIBUTED].live_bytes,
                "unattributed_at_peak": rows[Place.DEVICE, Category.UNATTRIBUTED].at_peak_bytes,
            }
            print(json.dumps(told), flush=True)
