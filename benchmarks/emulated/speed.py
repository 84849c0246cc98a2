"""How long emulated trials take beyond imports, how much memory, and how that compares with importing alone.

    python benchmarks/emulated/speed.py [--tiny] [--out FILE]

The three that users wait for: the table of stages and offloads that `zerobench plan` shows of a 7B model on 64 GPUs, a
cell of 70B and one of a trillion parameters on 1024. Each cell is a fork of one process that has imported everything,
which a tiny trial before the first sees to. What is held against the goal are seconds of a processor, the kernel's own
account of the simulator and its forks, records and starting a fork included: a trial that has a core for itself takes
as long, and one that shares it with others is not charged for them. Seconds of a wall clock stand beside.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.prediction.peak_memory import PeakMemory
from benchmarks.prediction.simulated import GPU, TINY, gpu_trial, origin, play, table
from zerobench.config.derived.cluster import read_cluster
from zerobench.config.models.presets import resolve_model
from zerobench.config.sweep.plan import cells
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.records.folder import write_whole
from zerobench.records.records import TrialRecord

MEMORY_GOAL_BYTES = 10**9
JOBS = 2
NUM_WARM = 2


@dataclass(frozen=True)
class Clock:
    """What has passed until some instant, and the largest process since the one before."""

    wall_s: float
    processor_s: float
    peak_rss_bytes: int


@dataclass(frozen=True)
class Timing:
    """One row of the table; seconds beyond imports, of a core where several are used."""

    what: str
    wall_s: float
    processor_s: float
    goal_s: float
    peak_rss_bytes: int


class Stopwatch:
    """Reads both clocks when each trial ends."""

    def __init__(self, memory: PeakMemory) -> None:
        self._memory = memory
        self._begun_s = time.perf_counter()
        self.readings: list[Clock] = []

    def ended(self, record: TrialRecord) -> None:
        """A trial has ended."""
        wall_s = time.perf_counter() - self._begun_s
        self.readings.append(Clock(wall_s, processor_s(), self._memory.take_bytes()))
        print(f"{wall_s:8.1f} s  {record.trial_id}", flush=True)


def processor_s() -> float:
    """Seconds of a processor that the processes below this one, and those that they have waited for, have taken."""
    times = [process.cpu_times() for process in psutil.Process().children()]
    return sum(used.user + used.system + used.children_user + used.children_system for used in times)


def large_cells(tiny: bool) -> list[tuple[str, float, TrialSpec]]:
    """What is timed alone: its name, its goal in seconds, the trial."""
    seventy = resolve_model(TINY if tiny else "llama-70b")
    trillion = resolve_model(TINY if tiny else load_sweep("trillion").file.axes["model"])
    return [
        (f"{model.name}, stage 3, N = 1024", goal_s, emulated(gpu_trial(model, 3, 1024, sequence_length=tokens(tiny))))
        for model, goal_s in ((seventy, 15.0), (trillion, 30.0))
    ]


def tokens(tiny: bool) -> int:
    """Of a sequence."""
    return 64 if tiny else 2048


def emulated(trial: TrialSpec, repeat: int = 0) -> TrialSpec:
    """The same in the emulated world."""
    return trial.model_copy(update={"evidence": Evidence.EMULATED, "repeat": repeat})


def warm_cells() -> list[TrialSpec]:
    """The first of two alike imports, so that the second tells what a trial takes that does nothing."""
    trial = gpu_trial(resolve_model(TINY), 3, 8, sequence_length=64)
    return [emulated(trial, repeat) for repeat in range(NUM_WARM)]


def time_large_cells(tiny: bool) -> tuple[Clock, list[Timing]]:
    """What importing everything takes, and a row for each large cell."""
    named = large_cells(tiny)
    with PeakMemory() as memory:
        watch = Stopwatch(memory)
        play([*warm_cells(), *(trial for *_, trial in named)], jobs=1, on_end=watch.ended)
    first, warm, *others = watch.readings
    imports = Clock(2 * first.wall_s - warm.wall_s, 2 * first.processor_s - warm.processor_s, first.peak_rss_bytes)
    steps = itertools.pairwise([warm, *others])
    rows = [
        Timing(name, now.wall_s - before.wall_s, now.processor_s - before.processor_s, goal_s, now.peak_rss_bytes)
        for (name, goal_s, _), (before, now) in zip(named, steps, strict=True)
    ]
    return imports, rows


def time_the_table(tiny: bool, imports: Clock) -> Timing:
    """All stages and offloads of a 7B model on 64 GPUs, as `zerobench plan` would play them."""
    model = resolve_model(TINY if tiny else "llama-7b")
    cluster = read_cluster(gpu=GPU, gpus="64", host_memory="2TB", nvme="25GB/s")
    work = {"model": model, "sequence_length": tokens(tiny), "activation_checkpointing": True}
    trials = [emulated(item.trial) for item in cells(work, cluster) if item.skipped is None]
    with PeakMemory() as memory:
        watch = Stopwatch(memory)
        play(trials, jobs=JOBS, on_end=watch.ended)
    last = watch.readings[-1]
    return Timing(
        f"{model.name}, {len(trials)} cells of stage and offload, N = 64, {JOBS} at a time",
        last.wall_s - imports.wall_s,
        (last.processor_s - imports.processor_s) / JOBS,
        20.0,
        max(reading.peak_rss_bytes for reading in watch.readings),
    )


def rows(imports: Clock, timed: Sequence[Timing]) -> list[str]:
    """The table."""
    headers = ("", "processor seconds", "goal, s", "", "times importing", "wall seconds", "peak RSS, GB")
    lines = [
        (
            timing.what,
            f"{timing.processor_s:.1f}",
            f"{timing.goal_s:.0f}",
            _verdict(timing),
            f"{timing.processor_s / imports.processor_s:.1f}",
            f"{timing.wall_s:.1f}",
            f"{timing.peak_rss_bytes / 1e9:.2f}",
        )
        for timing in timed
    ]
    return table(headers, lines)


def _verdict(timing: Timing) -> str:
    held = {"time": timing.processor_s <= timing.goal_s, "memory": timing.peak_rss_bytes < MEMORY_GOAL_BYTES}
    missed = [name for name, is_held in held.items() if not is_held]
    return f"MISSED: {', '.join(missed)}" if missed else "reached"


def report(imports: Clock, timed: Sequence[Timing], load: float) -> str:
    """The Markdown document."""
    intro = (
        f"Seconds of an emulated trial beyond imports ({imports.processor_s:.1f} s of a processor, "
        f"{imports.wall_s:.1f} s by the clock, once for all), and the largest resident size of a process, which must "
        f"stay below {MEMORY_GOAL_BYTES / 1e9:.0f} GB. Rank 0 of N H200, bf16, micro batch 1, sequences of 2048 "
        "tokens, activation checkpointing, DeepSpeed's own defaults. Where several cells are played at a time, "
        f"processor seconds are those of one of their cores. The machine's load before the first was {load:.1f}."
    )
    return "\n".join(["# How long emulated trials take", "", *origin(), intro, "", *rows(imports, timed)])


def main() -> None:
    """Time everything, write the table, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, to see whether it runs at all")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    imports, large = time_large_cells(asked.tiny)
    print("\n".join(rows(imports, large)), flush=True)
    timed = [time_the_table(asked.tiny, imports), *large]
    write_whole(asked.out, report(imports, timed, load))
    print("\n".join(rows(imports, timed)))
    print(asked.out)


if __name__ == "__main__":
    main()
