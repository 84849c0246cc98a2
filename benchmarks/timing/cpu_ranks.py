"""Expected steps of small models on CPU ranks against measured ones: 40 cells with real gloo.

    python benchmarks/timing/cpu_ranks.py measure             # cells that cpu_ranks.csv lacks, one after the other
    python benchmarks/timing/cpu_ranks.py measure --cells 4   # the first few of them
    python benchmarks/timing/cpu_ranks.py judge               # simulate what was measured; prints the table

One run of one rank says how fast a thread multiplies matrices (its passes) and moves bytes (its update). Nothing else
is calibrated: each other cell is simulated, and the order in which its engine issued its work replayed at those rates.
On a loopback every byte is copied by the ranks' own processors, so collectives take what their copies take, and nothing
is hidden behind computing. How often gloo copies and adds stands in torch's and gloo's sources (`moved_by_call`).

The run of one rank is measured again between any two cells, so that each is judged by the machine as it was then: its
rates are the mean of those before and after. How much slower that was than the fastest of all such runs is the cell's
load, and by how much the two differ its unrest. A busy machine whose kernel shares it out by sessions (Linux,
sched_autogroup) leaves two ranks of one launcher no more than it leaves one alone: crowding, by how much longer each of
two threads takes than one by itself, is measured with every cell too, and its rates are so much lower. It is 1 on an
idle machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import yaml

import zerobench
from benchmarks.prediction.simulated import origin, simulate, table
from zerobench.errors import UserError
from zerobench.records import Phase, RankRecord, Status
from zerobench.report.speed import Speed, speed_of
from zerobench.report.step_time.links import flow
from zerobench.report.trials import completed, ended_trials
from zerobench.spec.architecture import dimensions
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import TrialSpec
from zerobench.timing.device import Device
from zerobench.timing.pipeline import StageTimes, passes_s
from zerobench.timing.rates import kind_rates
from zerobench.timing.replay import Pace, Timeline, replay
from zerobench.timing.trace import Awaited, Call, Item, Kernels, StepTrace, Work, unpack

FILE = Path(__file__).with_name("cpu_ranks.csv")
RESTLESS = 0.2
"""Unrest at which a cell's rates are not told well enough to judge it alone."""
ENGINES = ("zero0", "zero1", "zero2", "zero3", "fsdp")
RANKS = 2
_CALL_S = 2e-4
"""Of one call on a loopback: threads are woken on both sides."""
_LAUNCH_S = 7e-6
"""In which Python and torch's dispatcher come to one operation, which a CPU then computes and nobody overlaps."""


Cell = Mapping[str, object]
"""Axes over the usual ones."""
REFERENCE: Cell = {"strategy": "single", "world_size": 1}
"""What is calibrated by."""


def cells() -> list[Cell]:
    """40 of them, in an order in which the first few have something of all."""
    all_cells: list[Cell] = [
        {"strategy": engine, "micro_batch_size": size, "sequence_length": length}
        for engine in ENGINES
        for size in (1, 4)
        for length in (128, 512)
    ]
    all_cells += [{"strategy": engine, "gradient_accumulation_steps": 4} for engine in ENGINES]
    all_cells += [
        {"strategy": engine, "offload_optimizer": "cpu", "optimizer": "cpu_adam", "micro_batch_size": size}
        for engine in ("zero1", "zero2", "zero3")
        for size in (1, 4)
    ]
    all_cells += [{"strategy": "pipeline", "gradient_accumulation_steps": steps} for steps in (2, 4, 8)]
    all_cells += [{"strategy": engine, "model": "gpt2-10m"} for engine in (*ENGINES, "pipeline")]
    return random.Random(17).sample(all_cells, len(all_cells))  # noqa: S311 -- the same order each time


@dataclass(frozen=True)
class Thread(Pace):
    """A rank's thread: products at one rate, all else by bytes."""

    flops_per_s: float = 1.0

    def work_s(self, phase: str, work: Work) -> dict[str, float]:
        """Seconds of a piece of work by class."""
        return {
            "products": flops_of(work) / self.flops_per_s,
            "elementwise": work.moved_bytes * self.byte_s[phase],
            "launches": work.launches * _LAUNCH_S,
        }


def flops_of(work: Work) -> float:
    """Of products, and of fused attention, which leaves out what the causal mask hides (FlashAttentionKernel.cpp)."""
    return sum(2 * count * a * b * c for (a, b, c), count in work.products) + sum(work.attention) / 2


@dataclass(frozen=True)
class MeasuredCell:
    """A cell, and the runs of one rank before and after it; seconds, medians of the timed steps of the slowest rank."""

    cell: str
    step_s: float
    least_step_s: float
    passes_before_s: float
    update_before_s: float
    passes_after_s: float
    update_after_s: float
    crowding: float

    @property
    def passes_s(self) -> float:
        """Of the one rank while the cell ran, as far as can be told."""
        return (self.passes_before_s + self.passes_after_s) / 2

    @property
    def update_s(self) -> float:
        """The same of its update."""
        return (self.update_before_s + self.update_after_s) / 2

    @property
    def unrest(self) -> float:
        """By how much the later run of one rank is off the earlier one."""
        return abs(self.passes_after_s / self.passes_before_s - 1)


def calibrated(trace: StepTrace, passes_s: float, update_s: float) -> Thread:
    """From a run of one rank. Raises UserError where its passes take no longer than their bytes alone."""
    flops = passed = updated = 0.0
    for phase, item in trace.in_phases():
        if not isinstance(item, Kernels):
            continue
        work = trace.works[item.work]
        if phase == Phase.STEP:
            updated += work.moved_bytes
            update_s -= work.launches * _LAUNCH_S
        else:
            flops += flops_of(work)
            passed += work.moved_bytes
            passes_s -= work.launches * _LAUNCH_S
    byte_s = update_s / updated if updated else 0.0
    if byte_s <= 0 or passes_s <= passed * byte_s:
        raise UserError(f"calibration: passes of {passes_s:.3g} s and an update of {update_s:.3g} s say no rates")
    device = Device(1.0, 1 / byte_s, 1, kind_rates("a100"), {})
    return Thread(
        device,
        slower=1.0,
        launch_s=0.0,
        byte_s=defaultdict(lambda: byte_s),
        call_s=lambda call: call_s(call, byte_s),
        copied_bytes_per_s=1 / (2 * byte_s),
        host_bytes_per_s=1 / byte_s,
        flops_per_s=flops / (passes_s - passed * byte_s),
    )


def call_s(call: Call, byte_s: float) -> float:
    """Seconds of one collective of ranks on one machine."""
    return _CALL_S + moved_by_call(call.kind, call.group_size, call.message_bytes) * byte_s


def moved_by_call(kind: str, size: int, message_bytes: int) -> float:
    """Bytes that a rank's processor reads and writes in one collective of gloo's.

    What it sends it copies into the kernel, and what it receives out of it (tcp_sendmsg, tcp_recvmsg; a loopback copies
    no third time): each byte is read and written. Sums read two and write one. ProcessGroupGloo has no reduce-scatter:
    it clones the input, reduces all of it everywhere and copies its own part out; its all-gather goes into a flat
    tensor, own part too, and from there into the outputs (ProcessGroupGloo.cpp, reduce_scatter_tensor_coalesced,
    AllgatherWork).
    """
    passing = flow("all_reduce" if kind == "reduce_scatter" else kind, size, message_bytes)
    if passing is None or size <= 1:
        return 0.0
    moved, part = 2 * (passing.in_bytes + passing.out_bytes), message_bytes / size
    if kind in {"all_reduce", "reduce_scatter", "reduce"}:
        moved += 3 * (message_bytes - part)
    if kind == "reduce_scatter":
        moved += 2 * (message_bytes + part)
    if kind == "all_gather":
        moved += 2 * (message_bytes + part)
    return moved


def one_at_a_time(trace: StepTrace) -> StepTrace:
    """The step of ranks that have a processor each: who computes does not pass on bytes meanwhile."""
    items: list[Item] = []
    calls = 0
    for item in trace.items:
        items.append(item)
        if isinstance(item, Call):
            items.append(Awaited(item.stream, calls))
            calls += 1
    return StepTrace(trace.works, tuple(items))


def expected_s(trial: TrialSpec, ranks: Sequence[RankRecord], pace: Thread) -> float:
    """The step by replay of one rank, or of each stage of a pipeline. Raises UserError: one left no trace."""
    timelines = [_replayed(trial, rank, pace) for rank in ranks]
    if trial.strategy != "pipeline":
        return timelines[0].step_s
    nbytes = 4 * trial.micro_batch_size * trial.sequence_length * (dimensions(trial.model).hidden_size or 0)
    border_s = sum(pace.call_s(Call(0, kind, RANKS, 1, nbytes)) for kind in ("send", "recv"))
    batches = trial.gradient_accumulation_steps
    passes = [timeline.total_s("compute") / batches for timeline in timelines]
    stages = [StageTimes(seconds / 3, seconds * 2 / 3, border_s) for seconds in passes]
    update_s = max(timeline.step_s - timeline.passes_s for timeline in timelines)
    return passes_s(stages, batches, forward_first=False) + update_s


def _replayed(trial: TrialSpec, rank: RankRecord, pace: Thread) -> Timeline:
    timeline = None if rank.step_trace is None else replay(one_at_a_time(unpack(rank.step_trace)), pace)
    if timeline is None:
        raise UserError(f"{trial.trial_id}: no trace of its step")
    return timeline


def run(cell: Cell) -> Speed:
    """One cell's ranks, by themselves. Raises UserError: it did not end well."""
    usual = {"model": "llama-10m", "world_size": RANKS, "micro_batch_size": 2, "sequence_length": 256}
    sweep = {
        "name": "cpu-ranks",
        "axes": {**usual, "precision": "fp32", "threads_per_rank": 1, **cell},
        "steps": {"warmup": 2, "timed": 5, "memory": 1},
    }
    with tempfile.TemporaryDirectory(prefix="zerobench-") as place:
        path = Path(place, "cpu_ranks.yaml")
        path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
        trials = list(ended_trials(zerobench.run(path, reports=place).run))
        if any(trial.record.status is Status.INTERRUPTED for trial in trials):
            raise SystemExit("stopped; what was measured is in the file")
        speeds = [speed_of(trial) for trial in trials if completed(trial)]
    if len(speeds) != 1 or speeds[0] is None:
        raise UserError(f"{json.dumps(cell)}: {'; '.join(trial.record.reason or 'not timed' for trial in trials)}")
    return speeds[0]


_COUNTS = """
import os, sys, time
for _ in range(int(sys.argv[1]) - 1):
    if not os.fork():
        break
count, end = 0, time.monotonic() + 3
while time.monotonic() < end:
    count += 1
print(count, flush=True)
"""


def crowding() -> float:
    """By how much longer each of RANKS processes of one session takes than one by itself."""
    alone, together = (
        fmean(
            int(count)
            for count in subprocess.run(
                [sys.executable, "-c", _COUNTS, str(number)],
                start_new_session=True,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
        )
        for number in (1, RANKS)
    )
    return alone / together


def measured() -> list[MeasuredCell]:
    """The rows of the file."""
    if not FILE.exists():
        return []
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [MeasuredCell(row.pop("cell"), **{name: float(value) for name, value in row.items()}) for row in rows]


def measure(count: int) -> None:
    """Add so many cells to the file, each as soon as it and the run of one rank after it have ended."""
    known = {row.cell for row in measured()}
    wanted = [cell for cell in cells() if json.dumps(cell) not in known][:count]
    before = run(REFERENCE) if wanted else None
    for cell in wanted:
        crowded = crowding()
        try:
            speed = run(cell)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            continue
        crowded = (crowded + crowding()) / 2
        after = run(REFERENCE)
        if before is not None:
            _append(MeasuredCell(json.dumps(cell), *_steps(speed), *_parts(before), *_parts(after), crowded))
        before = after


def _steps(speed: Speed) -> tuple[float, float]:
    return speed.step_time_s_median, min(step.step_s for step in speed.steps)


def _parts(speed: Speed) -> tuple[float, float]:
    return (speed.forward_s or 0.0) + (speed.backward_s or 0.0), speed.step_s or 0.0


def _append(row: MeasuredCell) -> None:
    is_new = not FILE.exists()
    with FILE.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(MeasuredCell)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({name: f"{value:.4g}" if name != "cell" else value for name, value in asdict(row).items()})


def judged(rows: Sequence[MeasuredCell]) -> Iterator[tuple[MeasuredCell, float, Thread]]:
    """Each row with the step that is expected of it, and the rates that it was expected at."""
    usual = {"model": "llama-10m", "micro_batch_size": 2, "sequence_length": 256, "precision": "fp32"}
    played: list[TrialSpec] = []
    for cell in (REFERENCE, *(json.loads(row.cell) for row in rows)):
        axes = {**usual, **cell}
        axes |= {"gpus_per_node": axes.pop("world_size", RANKS), "model": resolve_model(str(axes["model"]))}
        axes |= {"evidence": "simulated", "threads_per_rank": 1, "steps": {"warmup": 1, "timed": 1, "memory": 1}}
        stages = RANKS if cell["strategy"] == "pipeline" else 1
        played += [TrialSpec.model_validate({**axes, "prediction": {"rank": rank}}) for rank in range(stages)]
    (_, reference), *ended = zip(played, simulate(played, jobs=1), strict=True)
    trace = unpack(reference.step_trace or "")
    for row in rows:
        spec, record = ended.pop(0)
        records = [record, *(ended.pop(0)[1] for _ in range(1, RANKS if spec.strategy == "pipeline" else 1))]
        crowded = max(1.0, row.crowding)  # nobody has more beside others: less is the probe's own noise
        pace = calibrated(trace, crowded * row.passes_s, crowded * row.update_s)
        yield row, expected_s(spec, records, pace), pace


def lines(rows: Sequence[MeasuredCell]) -> list[str]:
    """The table, and the median errors of all cells and of those that were measured in peace."""
    fastest = min(min(row.passes_before_s, row.passes_after_s) for row in rows)
    errors = [(row, step_s / row.step_s - 1, step_s) for row, step_s, _ in judged(rows)]
    texts = [
        (
            ", ".join(f"{name} {value}" for name, value in json.loads(row.cell).items()),
            f"{1e3 * step_s:.0f}",
            f"{1e3 * row.step_s:.0f}",
            f"{error:+.0%}",
            f"{row.passes_s / fastest:.1f}",
            f"{row.unrest:.0%}",
            f"{row.crowding:.1f}",
        )
        for row, error, step_s in errors
    ]
    calm = [abs(error) for row, error, _ in errors if row.unrest <= RESTLESS]
    verdict = f"{len(rows)} of {len(cells())} cells, median error {median(abs(error) for _, error, _ in errors):.1%}"
    if calm:
        verdict += f"; of the {len(calm)} with unrest up to {RESTLESS:.0%}: {median(calm):.1%}"
    return [*table(("cell", "expected ms", "measured ms", "error", "load", "unrest", "crowding"), texts), verdict]


def main() -> None:
    """Measure, or simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["measure", "judge"])
    parser.add_argument("--cells", type=int, default=40, help="how many cells to measure, at most")
    asked = parser.parse_args()
    if asked.what == "measure":
        measure(asked.cells)
    else:
        print("\n".join([*origin(), *lines(measured())]))


if __name__ == "__main__":
    main()
