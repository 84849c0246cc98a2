"""Tokens a second of zerobench's loop beside those that people use: same shape, tokens and precision, in one run.

    python benchmarks/gpu_campaign/loops.py [--model llama-1b] [--micro-batch 4] [--sequence 2048] [--steps 20]
                                            [--pairs 3] [--checkpointing] [--out FILE]

zerobench (ZeRO-1), a bare DeepSpeed loop, Hugging Face's Trainer over DeepSpeed, accelerate over DDP and over FSDP2,
each in processes of its own, in turns, and whoever begins changes with every round. MFU is against the catalogue's
peak and against the matrix rate that this device reached in this run, since a device's peak is a matter of its power.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from rich.console import Console

from benchmarks.launches import ROOT, Bench, Launch
from benchmarks.overhead import say
from benchmarks.prediction.simulated import origin, table
from zerobench.config.derived.flops import MODEL_FORMULA, model_flops_per_token
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.hardware.hardware import peak_flops
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.optimizers import Optimizer
from zerobench.launch.machine.this_machine import detect_machine

STRATEGY = "zero1"

Side = Callable[[Bench, int], Launch]


def _script(side: str, script: str, **more: Any) -> Side:
    return lambda bench, pair: bench.script(side, f"gpu_campaign/{script}", STRATEGY, pair, **more)


SIDES: dict[str, Side] = {
    "zerobench": lambda bench, pair: bench.zerobench(STRATEGY, pair),
    "bare DeepSpeed": lambda bench, pair: bench.bare(STRATEGY, pair),
    "Trainer + DeepSpeed": _script("trainer", "trainer_loop.py"),
    "accelerate + DDP": _script("accelerate-ddp", "accelerate_loop.py", is_fsdp=False),
    "accelerate + FSDP2": _script("accelerate-fsdp", "accelerate_loop.py", is_fsdp=True),
}


def rounds(bench: Bench, sides: Sequence[str], pairs: int, progress: Console) -> dict[str, list[Launch]]:
    """Every side once in each round. A first launch is thrown away: it compiles DeepSpeed's kernels."""
    say(progress, "a launch that is thrown away")
    dataclasses.replace(bench, steps=1).bare(STRATEGY, pair=-1)
    launches: dict[str, list[Launch]] = {side: [] for side in sides}
    for pair in range(pairs):
        turn = pair % len(sides)
        for side in [*sides[turn:], *sides[:turn]]:
            say(progress, f"round {pair + 1} of {pairs}: {side}")
            launches[side].append(SIDES[side](bench, pair))
    return launches


_MATRIX_RATE = """
import time, torch
size, device = 8192, torch.device("cuda")
a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
rates = []
for _ in range(8):
    torch.cuda.synchronize(); begun = time.perf_counter()
    for _ in range(20): a @ b
    torch.cuda.synchronize(); rates.append(20 * 2 * size**3 / (time.perf_counter() - begun))
print(sorted(rates)[len(rates) // 2])
"""


def matrix_rate() -> float:
    """FLOP/s of large bf16 matrix products on this device, the median of eight times twenty."""
    done = subprocess.run([sys.executable, "-c", _MATRIX_RATE], capture_output=True, text=True, check=True)
    return float(done.stdout)


def lines(bench: Bench, launches: dict[str, list[Launch]], rates: dict[str, float]) -> list[str]:
    """The table: tokens a second with the range over the rounds, as a part of zerobench's, and MFU."""
    per_token, _ = model_flops_per_token(bench.model, bench.sequence_length)
    tokens = bench.micro_batch_size * bench.sequence_length * bench.machine.ranks_per_node
    own = statistics.median(launch.steps_per_s for launch in launches["zerobench"]) * tokens
    rows = []
    for side, side_launches in launches.items():
        speeds = sorted(launch.steps_per_s * tokens for launch in side_launches)
        middle = statistics.median(speeds)
        flops = None if per_token is None else per_token * middle / bench.machine.ranks_per_node
        uses = ["n/a" if flops is None else f"{flops / rate:.1%}" for rate in rates.values()]
        rows.append((side, f"{middle:,.0f}", f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}", f"{middle / own:.3f}", *uses))
    return table(("loop", "tokens/s", "range", "of zerobench", *rates), rows)


def main() -> None:
    """Measure, print the table, keep the raw values."""
    asked = _parse()
    machine, progress = detect_machine(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="zerobench-loops-") as folder:
        bench = Bench(
            Path(folder),
            machine,
            resolve_model(asked.model),
            asked.steps,
            asked.micro_batch,
            asked.sequence,
            Optimizer.FUSED_ADAMW if machine.accelerator is Accelerator.CUDA else Optimizer.ADAMW,
            asked.checkpointing,
        )
        launches = rounds(bench, asked.sides, asked.pairs, progress)
        text = "\n".join([*origin(), MODEL_FORMULA, "", *lines(bench, launches, _rates(machine))])
    print(text)
    raw = {side: [dataclasses.asdict(launch) for launch in side_launches] for side, side_launches in launches.items()}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps({"asked": vars(asked) | {"out": str(asked.out)}, "launches": raw}, indent=1))
    asked.out.with_suffix(".md").write_text(text, encoding="utf-8")


def _rates(machine: Machine) -> dict[str, float]:
    """What MFU is a part of, by the column's name; nothing on a CPU, whose peak nobody knows."""
    if machine.accelerator is not Accelerator.CUDA:
        return {}
    import torch  # noqa: PLC0415 - a CPU run of this script needs no torch of its own

    known = peak_flops(torch.cuda.get_device_name(), "bf16")
    measured = matrix_rate()
    named = {} if known is None else {f"of {known[0] / 1e12:.0f} TFLOP/s": known[0]}
    return named | {f"of {measured / 1e12:.0f} measured": measured}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1b")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a launch")
    parser.add_argument("--pairs", type=int, default=3, help="rounds")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(SIDES), help="some of them")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "loops.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
