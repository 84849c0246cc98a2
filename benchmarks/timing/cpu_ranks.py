"""Expected steps of small models on CPU ranks against measured ones: 40 cells with real gloo.

    python benchmarks/timing/cpu_ranks.py             # up to fifteen minutes on two idle cores; prints the table
    python benchmarks/timing/cpu_ranks.py --cells 4   # the first few

One run of one rank says how fast a thread multiplies matrices (its passes) and moves bytes (its update). Nothing else
is calibrated: each other cell is simulated, and the order in which its engine issued its work replayed at those rates.
On a loopback every byte is copied by the ranks' own processors, so collectives take what their copies take.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import yaml

import zerobench
from benchmarks.prediction.simulated import origin, simulate, table
from zerobench.errors import UserError
from zerobench.records import Phase, RankRecord
from zerobench.report.speed import Speed, speed_of
from zerobench.report.step_time.links import flow
from zerobench.report.trials import completed, ended_trials
from zerobench.spec.trial import TrialSpec
from zerobench.timing.device import Device
from zerobench.timing.rates import kind_rates
from zerobench.timing.replay import Pace, replay
from zerobench.timing.trace import Call, Kernels, StepTrace, Work, unpack

ENGINES = ("zero0", "zero1", "zero2", "zero3", "fsdp")
RANKS = 2
_COPIES = 4
"""Of each byte that a rank sends: out of its memory, into the socket's, out of that, and into the other's; each is read
and written once."""
_CALL_S = 2e-4
"""Of one call on a loopback: threads are woken on both sides."""


def cells() -> list[dict[str, object]]:
    """40 of them, and first the one that is calibrated by."""
    found: list[dict[str, object]] = [{"strategy": "single", "world_size": 1}]
    found += [
        {"strategy": engine, "micro_batch_size": size, "sequence_length": length}
        for engine in ENGINES
        for size in (1, 4)
        for length in (128, 512)
    ]
    found += [{"strategy": engine, "gradient_accumulation_steps": 4} for engine in ENGINES]
    found += [
        {"strategy": engine, "offload_optimizer": "cpu", "optimizer": "cpu_adam", "micro_batch_size": size}
        for engine in ("zero1", "zero2", "zero3")
        for size in (1, 4)
    ]
    found += [{"strategy": "pipeline", "gradient_accumulation_steps": steps} for steps in (2, 4, 8)]
    return found + [{"strategy": engine, "model": "gpt2-10m"} for engine in (*ENGINES, "pipeline")]


@dataclass(frozen=True)
class Thread(Pace):
    """A rank's thread: products at one rate, all else by bytes."""

    flops_per_s: float = 1.0

    def work_s(self, phase: str, work: Work) -> dict[str, float]:
        """Seconds of a piece of work by class."""
        products = sum(2 * count * a * b * c for (a, b, c), count in work.products) / self.flops_per_s
        return {"products": products, "elementwise": work.moved_bytes * self.byte_s[phase]}


def calibrated(trace: StepTrace, speed: Speed) -> Thread:
    """From the run of one rank. Raises UserError where its passes take no longer than their bytes alone."""
    flops = passed = updated = 0.0
    for phase, item in trace.in_phases():
        if isinstance(item, Kernels):
            work = trace.works[item.work]
            flops += sum(2 * count * a * b * c for (a, b, c), count in work.products)
            passed += work.moved_bytes * (phase != Phase.STEP)
            updated += work.moved_bytes * (phase == Phase.STEP)
    passes_s, update_s = (speed.forward_s or 0.0) + (speed.backward_s or 0.0), speed.step_s or 0.0
    byte_s = update_s / updated if updated else 0.0
    if not byte_s or passes_s <= passed * byte_s:
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
    moved = flow(call.kind, call.group_size, call.message_bytes)
    return _CALL_S + (0.0 if moved is None else 2 * _COPIES * moved.slower_bytes * byte_s)


def expected_s(trial: TrialSpec, rank: RankRecord, pace: Thread) -> float:
    """The step by replay. The stages of a pipeline wait for the first micro-batch to come through, and the last."""
    timeline = None if rank.step_trace is None else replay(unpack(rank.step_trace), pace)
    if timeline is None:
        raise UserError(f"{trial.trial_id}: no trace of its step")
    waits = trial.world_size - 1 if trial.strategy == "pipeline" else 0
    return timeline.step_s + timeline.passes_s * waits / trial.gradient_accumulation_steps


def measured(asked: Sequence[dict[str, object]]) -> list[tuple[TrialSpec, Speed]]:
    """The cells that ran, and how fast, in their order."""
    sweep = {
        "name": "cpu-ranks",
        "axes": {
            "model": "llama-10m",
            "strategy": "single",
            "world_size": RANKS,
            "micro_batch_size": 2,
            "sequence_length": 256,
            "precision": "fp32",
            "threads_per_rank": 1,
            **asked[0],
        },
        "include": [{"world_size": RANKS, **cell} for cell in asked[1:]],
        "steps": {"warmup": 2, "timed": 5, "memory": 1},
    }
    with tempfile.TemporaryDirectory(prefix="zerobench-") as place:
        path = Path(place, "cpu_ranks.yaml")
        path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
        run = zerobench.run_sweep(path, reports=place).run
        trials = [trial for trial in ended_trials(run) if completed(trial)]
        return [(trial.spec, speed) for trial in trials if (speed := speed_of(trial)) is not None]


def lines(found: Sequence[tuple[TrialSpec, Speed]]) -> list[str]:
    """The table, and the median error; the first of `found` calibrates and is not judged."""
    asked = [
        TrialSpec.model_validate({**trial.model_dump(), "evidence": "simulated", "prediction": {"rank": 0}})
        for trial, _ in found
    ]
    records = simulate(asked, jobs=1)
    pace = calibrated(unpack(records[0].step_trace or ""), found[0][1])
    rows, errors = [], []
    for (trial, speed), record in zip(found[1:], records[1:], strict=True):
        said, took = expected_s(trial, record, pace), speed.step_time_s_median
        errors.append(said / took - 1)
        rows.append((trial.trial_id, f"{1e3 * said:.1f}", f"{1e3 * took:.1f}", f"{errors[-1]:+.1%}"))
    rates = f"{pace.flops_per_s / 1e9:.1f} GFLOP/s and {pace.device.memory_bytes_per_s / 1e9:.1f} GB/s a thread"
    verdict = f"{len(rows)} cells, median error {median(map(abs, errors)):.1%}; calibrated: {rates}"
    return [*table(("trial", "expected ms", "measured ms", "error"), rows), verdict]


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", type=int, default=40, help="how many of the 40")
    asked = cells()[: parser.parse_args().cells + 1]
    print("\n".join([*origin(), *lines(measured(asked))]))


if __name__ == "__main__":
    main()
