"""CPU ranks: the expected time of their steps, by rates measured on one machine (cpu_ranks.yaml, gloo.csv).

A rank is a thread that multiplies matrices at one rate, moves bytes at another and takes Python's time between any two
operations. Nothing is hidden behind computing: who computes passes nothing on meanwhile. The rates are made by a run of
one rank and judged by 40 cells of two in benchmarks/timing/cpu_ranks.py.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from pydantic import Field

from zerobench.config.trial.base import Spec
from zerobench.estimate.time.device import Device
from zerobench.estimate.time.rates import kind_rates
from zerobench.estimate.time.replay import Pace, Timeline, replay
from zerobench.estimate.time.trace import UPDATE, Call, CollectiveWait, Item, StepTrace, Work

RATES_FILE = Path(__file__).with_name("cpu_ranks.yaml")
COLLECTIVES_FILE = Path(__file__).with_name("gloo.csv")
RANKS = 2
"""Of which gloo was timed."""
MAPPING = "mapping"
"""The row of memory that is mapped anew: how much longer it takes to write than memory that was there."""


@dataclass(frozen=True)
class Timed:
    """One row of the file of collectives."""

    kind: str
    message_bytes: int
    duration_ns: int


class Gloo:
    """Seconds of collectives by the file's rows."""

    def __init__(self, rows: Iterable[Timed]) -> None:
        self._points: dict[str, list[tuple[int, float]]] = {}
        for row in sorted(rows, key=lambda row: row.message_bytes):
            self._points.setdefault(row.kind, []).append((row.message_bytes, row.duration_ns / 1e9))
        [(nbytes, seconds)] = self._points.pop(MAPPING)
        self.mapped_byte_s = seconds / nbytes

    def call_s(self, call: Call) -> float:
        """Of one collective. Raises KeyError: its kind was not timed."""
        if call.group_size <= 1:
            return 0.0
        points = self._points["send" if call.kind == "recv" else call.kind]
        sizes, seconds = zip(*points, strict=True)
        beyond = max(1.0, call.message_bytes / sizes[-1])
        return float(beyond * np.interp(call.message_bytes, sizes, seconds))


def timed() -> list[Timed]:
    """The rows of the file."""
    with COLLECTIVES_FILE.open(encoding="utf-8", newline="") as file:
        return [Timed(row["kind"], int(row["message_bytes"]), int(row["duration_ns"])) for row in csv.DictReader(file)]


class Between(Spec):
    """Python's time of one engine from one operation to the next."""

    passes_s: float = Field(ge=0)
    update_s: float = Field(ge=0)


class ThreadRates(Spec):
    """What one thread of the machine that was measured achieves."""

    machine: str
    flop_s: float = Field(gt=0)
    """Of a product in fp32."""
    byte_s: float = Field(gt=0)
    """Of all else, read or written."""
    between: dict[str, Between]
    """By engine and offload (`engine_of`)."""


@dataclass(frozen=True)
class Thread(Pace):
    """A rank's thread: products at one rate, all else by bytes, and Python between any two operations."""

    flop_s: float = 0.0
    between_s: float = 0.0
    """From one operation of the passes to the next: the model's Python, and an engine's hooks and copies."""
    update_between_s: float = 0.0

    def work_s(self, phase: str, work: Work) -> dict[str, float]:
        """Seconds of a piece of work by class."""
        between_s = self.update_between_s if phase == UPDATE else self.between_s
        seconds = {
            "products": flops_of(work) * self.flop_s,
            "elementwise": work.moved_bytes * self.byte_s[phase],
            "launches": work.launches * between_s,
        }
        return {name: self.slower * value for name, value in seconds.items()}


def flops_of(work: Work) -> float:
    """Of products, and of fused attention, which leaves out what the causal mask hides (FlashAttentionKernel.cpp)."""
    return sum(2 * count * a * b * c for (a, b, c), count in work.products) + sum(work.attention) / 2


def engine_of(strategy: str, *, offloads: bool) -> str:
    """By whose thread a trial goes: its engine's, a stage of a pipeline as a process by itself."""
    return ("single" if strategy == "pipeline" else strategy) + "+offload" * offloads


def threads(rates: ThreadRates, gloo: Gloo) -> dict[str, Thread]:
    """The thread of each engine."""
    return {
        engine: Thread(
            Device(1.0, 1 / rates.byte_s, 1, kind_rates("a100"), {}),
            slower=1.0,
            launch_s={},
            byte_s=defaultdict(lambda: rates.byte_s),
            call_s=gloo.call_s,
            copied_bytes_per_s=1 / (2 * rates.byte_s),
            host_bytes_per_s=1 / rates.byte_s,
            mapped_byte_s=gloo.mapped_byte_s,
            computes_on_host=True,
            flop_s=rates.flop_s,
            between_s=between.passes_s,
            update_between_s=between.update_s,
        )
        for engine, between in rates.between.items()
    }


@cache
def shipped_rates() -> ThreadRates:
    """Those of the file."""
    return ThreadRates.model_validate(yaml.safe_load(RATES_FILE.read_text(encoding="utf-8")))


@cache
def shipped_threads() -> dict[str, Thread]:
    """By the files of rates and collectives."""
    return threads(shipped_rates(), Gloo(timed()))


def one_at_a_time(trace: StepTrace) -> StepTrace:
    """The step of ranks that have a processor each: who computes does not pass on bytes meanwhile."""
    items: list[Item] = []
    calls = 0
    for item in trace.items:
        items.append(item)
        if isinstance(item, Call):
            items.append(CollectiveWait(item.stream, calls))
            calls += 1
    return StepTrace(trace.works, tuple(items))


def replayed(trace: StepTrace, pace: Thread) -> Timeline | None:
    """The step of one rank; None where the rate of something in it is not known."""
    try:
        return replay(one_at_a_time(trace), pace)
    except KeyError:  # a collective that was not timed
        return None
