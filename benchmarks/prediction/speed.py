"""How long simulations take beyond imports, and how much memory, against what they must reach on two cores.

    python benchmarks/prediction/speed.py [--tiny] [--out FILE]

Every trial runs alone in a simulator that has imported everything, which a tiny trial before it sees to: its seconds
run from the end of the trial before to its own, fork, records and reading them back included. Memory is the largest
resident size of the process (VmHWM), pages that it shares with the simulator included. The table of stages and offloads
is that of `zerobench plan`, in one simulator that runs two trials at a time; its seconds are those of a wall clock from
the first start to the last end, less what imports took.

Figures are the machine's, and a loaded machine makes them worthless.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.prediction.peak_memory import PeakMemory
from benchmarks.prediction.simulated import GPU, TINY, gpu_trial, origin, simulate, table
from zerobench.config.derived.cluster import read_cluster
from zerobench.config.models.presets import resolve_model
from zerobench.config.sweep.plan import cells
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import write_whole
from zerobench.records.records import TrialRecord

MEMORY_GOAL_BYTES = 10**9
JOBS = 2


@dataclass(frozen=True)
class Timing:
    """One row of the table."""

    what: str
    seconds: float
    goal_s: float
    peak_rss_bytes: int


class Stopwatch:
    """Notes when each trial ends, and the largest process until then."""

    def __init__(self, memory: PeakMemory) -> None:
        self._memory = memory
        self.begun_s = time.perf_counter()
        self.ends: list[tuple[float, int]] = []

    def ended(self, record: TrialRecord) -> None:
        """A trial has ended."""
        self.ends.append((time.perf_counter() - self.begun_s, self._memory.take_bytes()))
        print(f"{self.ends[-1][0]:8.1f} s  {record.trial_id}", flush=True)

    def seconds(self) -> list[float]:
        """Of each trial, from the end of the one before; of the first, with all imports."""
        times = [0.0, *(end for end, _ in self.ends)]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def one_by_one(tiny: bool) -> list[tuple[str, float, TrialSpec]]:
    """What is timed alone: its name, its goal in seconds, the trial."""
    seven, seventy = (_model(name, tiny=tiny) for name in ("llama-7b", "llama-70b"))
    trillion = resolve_model(TINY if tiny else load_sweep("trillion").file.axes["model"])
    cases = [
        (f"{seven.name}, stage {stage}, N = {n}", 10.0, _trial(seven, stage, n))
        for stage in range(4)
        for n in (8, 64, 1024)
    ]
    cases.append((f"{seventy.name}, stage 3, N = 1024", 30.0, _trial(seventy, 3, 1024)))
    cases.append((f"{trillion.name}, stage 3, N = 1024", 120.0, _trial(trillion, 3, 1024)))
    return cases


def _model(name: str, *, tiny: bool) -> ModelSpec:
    return resolve_model(TINY if tiny else name)


def _trial(model: ModelSpec, stage: int, world_size: int) -> TrialSpec:
    return gpu_trial(model, stage, world_size, sequence_length=2048 if "tiny" not in model.name else 64)


def time_one_by_one(tiny: bool) -> tuple[float, list[Timing]]:
    """Seconds of importing everything, and a row for each trial."""
    named = one_by_one(tiny)
    warm = [_trial(resolve_model(TINY), 3, 8).model_copy(update={"repeat": repeat}) for repeat in (0, 1)]
    with PeakMemory() as memory:
        watch = Stopwatch(memory)
        simulate([*warm, *(trial for *_, trial in named)], jobs=1, on_end=watch.ended)
    with_imports, without, *seconds = watch.seconds()
    sizes = [size for _, size in watch.ends][len(warm) :]
    rows = [Timing(name, s, goal, size) for (name, goal, _), s, size in zip(named, seconds, sizes, strict=True)]
    return with_imports - without, rows


def time_the_table(tiny: bool, imports_s: float) -> Timing:
    """All stages and offloads of a 7B model on 64 GPUs, as `zerobench plan` would simulate them."""
    model = _model("llama-7b", tiny=tiny)
    cluster = read_cluster(gpu=GPU, gpus="64", host_memory="2TB", nvme="25GB/s")
    work = {"model": model, "sequence_length": 64 if tiny else 2048, "activation_checkpointing": True}
    trials = [item.trial for item in cells(work, cluster) if item.skipped is None]
    with PeakMemory() as memory:
        watch = Stopwatch(memory)
        simulate(trials, jobs=JOBS, on_end=watch.ended)
    last_s, _ = watch.ends[-1]
    name = f"{model.name}, {len(trials)} cells of stage and offload, N = 64, {JOBS} at a time"
    return Timing(name, last_s - imports_s, 60.0, max(size for _, size in watch.ends))


def rows(timed: Sequence[Timing]) -> list[str]:
    """The table."""
    cells_of = [
        (
            timing.what,
            f"{timing.seconds:.1f}",
            f"{timing.goal_s:.0f}",
            _verdict(timing),
            f"{timing.peak_rss_bytes / 1e9:.2f}",
        )
        for timing in timed
    ]
    return table(("", "seconds", "goal, s", "", "peak RSS, GB"), cells_of)


def _verdict(timing: Timing) -> str:
    missed = [
        name
        for name, ok in (
            ("time", timing.seconds <= timing.goal_s),
            ("memory", timing.peak_rss_bytes < MEMORY_GOAL_BYTES),
        )
        if not ok
    ]
    return f"MISSED: {', '.join(missed)}" if missed else "reached"


def report(imports_s: float, timed: Sequence[Timing]) -> str:
    """The Markdown document."""
    intro = (
        f"Seconds of one simulated trial beyond imports ({imports_s:.1f} s, once a simulator), and the largest "
        f"resident size of a process, which must stay below {MEMORY_GOAL_BYTES / 1e9:.0f} GB. Rank 0 of N H200, bf16, "
        "micro batch 1, sequences of 2048 tokens, activation checkpointing, DeepSpeed's own defaults."
    )
    return "\n".join(["# How long simulations take", "", *origin(), intro, "", *rows(timed)])


def main() -> None:
    """Time everything, write the table, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, to see whether it runs at all")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    asked = parser.parse_args()
    imports_s, timed = time_one_by_one(asked.tiny)
    timed = [*timed, time_the_table(asked.tiny, imports_s)]
    write_whole(asked.out, report(imports_s, timed))
    print("\n".join(rows(timed)))
    print(asked.out)


if __name__ == "__main__":
    main()
