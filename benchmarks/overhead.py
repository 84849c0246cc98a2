"""What zerobench costs: the same training in a bare DeepSpeed loop and through zerobench, side by side in one run.

    python benchmarks/overhead.py [--pairs 6] [--steps 10] [--blocks 12] [--block-steps 6] [--devices N]
                                  [--only a,b,c,d,e] [--out FILE]

a. steps per second, bare against zerobench: the launches alternate, each pair gives one ratio
b. seconds of the whole process beyond the steps, from the same launches
c. steps per second with the NVML sampler on against off, in alternating blocks of one process
d. seconds of a step under the memory ledger against without it, in such blocks
e. steps per second of `zerobench run` on a terminal, which shows the live view, against into a pipe

Printed beside each figure: its goal, and the interval that holds the true median with 95 % confidence (order
statistics; below six pairs the range, and said so). benchmarks/README.md says what is counted and what is not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from benchmarks.launches import ROOT, Bench, Launch
from benchmarks.overhead_tables import (
    ledger_table,
    process_table,
    sampler_lines,
    sampler_table,
    speed_table,
    watched_table,
)
from benchmarks.watched_runs import VIEWS, watched_run
from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Accelerator
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Precision
from zerobench.launch.machine.this_machine import detect_machine

ZERO_STRATEGIES = ("zero0", "zero1", "zero2", "zero3")
PARTS = ("a", "b", "c", "d", "e")


def launch_pairs(
    bench: Bench, strategies: Sequence[str], pairs: int, console: Console, *, pinned_malloc: bool
) -> list[Launch]:
    """Both sides in turn, for each strategy; the side that begins alternates. A first launch is thrown away: it finds
    no file in the page cache, and DeepSpeed's kernels not compiled.
    """
    say(console, "a launch that is thrown away")
    dataclasses.replace(bench, steps=1).bare(strategies[0], pair=-1)
    launches = []
    for pair in range(pairs):
        for strategy in strategies:
            sides = ("bare", "zerobench") if pair % 2 == 0 else ("zerobench", "bare")
            for side in sides:
                say(console, f"pair {pair + 1} of {pairs}: {strategy}, {side}")
                if side == "bare":
                    launches.append(bench.bare(strategy, pair, pinned_malloc=pinned_malloc))
                else:
                    launches.append(bench.zerobench(strategy, pair))
    return launches


def watched_pairs(
    bench: Bench, model: str, strategy: str, pairs: int, console: Console
) -> list[dict[str, float | str | int]]:
    """Runs with and without the live view in turn; the side that begins alternates."""
    runs = []
    for pair in range(pairs):
        for view in VIEWS if pair % 2 == 0 else reversed(VIEWS):
            say(console, f"pair {pair + 1} of {pairs}: {strategy}, {view}")
            runs.append(watched_run(bench, model, strategy, view, pair))
    return runs


def say(console: Console, what: str) -> None:
    """A line of progress, with the time, apart from the tables."""
    console.print(f"[dim]{time.strftime('%H:%M:%S')} {what}[/dim]", highlight=False)


def main() -> None:
    """Run the parts asked for, print their tables, keep the raw values."""
    asked = parse()
    console, progress = Console(), Console(stderr=True)
    machine = detect_machine()
    raw: dict[str, Any] = {"asked": vars(asked) | {"out": str(asked.out)}, "machine": machine.model_dump(mode="json")}
    with tempfile.TemporaryDirectory(prefix="zerobench-overhead-") as folder:
        bench = Bench(Path(folder), machine, resolve_model(asked.model), asked.steps, precision=asked.precision)
        if {"a", "b"} & set(asked.only):
            launches = launch_pairs(bench, asked.strategies, asked.pairs, progress, pinned_malloc=asked.pinned_bare)
            raw["launches"] = [dataclasses.asdict(launch) for launch in launches]
            if "a" in asked.only:
                console.print(speed_table(launches, pinned_malloc=asked.pinned_bare))
            if "b" in asked.only:
                console.print(process_table(launches))
        if "c" in asked.only:
            say(progress, f"{asked.blocks} pairs of blocks, sampler on and off")
            blocks = dataclasses.replace(bench, steps=asked.block_steps).sampler_blocks(
                asked.strategies[0], asked.blocks, asked.devices
            )
            raw["sampler"] = blocks
            console.print(sampler_table(blocks, on_gpu=machine.accelerator is Accelerator.CUDA))
            console.print(sampler_lines(blocks), highlight=False)
        if "d" in asked.only:
            say(progress, f"{asked.blocks} pairs of blocks, ledger on and off")
            tracked = dataclasses.replace(bench, steps=asked.block_steps).ledger_blocks(
                asked.strategies[0], asked.blocks
            )
            raw["ledger"] = tracked
            console.print(ledger_table(tracked))
        if "e" in asked.only:
            raw["watched"] = watched_pairs(bench, asked.model, asked.strategies[0], asked.pairs, progress)
            console.print(watched_table(raw["watched"], asked.steps))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(raw, indent=1), encoding="utf-8")
    console.print(f"raw values: {asked.out}", highlight=False, soft_wrap=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=at_least_one, default=6, help="pairs of launches of each strategy (a, b, e)")
    parser.add_argument("--steps", type=at_least_one, default=10, help="timed steps of a launch (a, b, e)")
    parser.add_argument("--blocks", type=at_least_one, default=12, help="pairs of blocks (c, d)")
    parser.add_argument("--block-steps", type=at_least_one, default=6, help="timed steps of a block (c, d)")
    parser.add_argument(
        "--devices", type=at_least_one, metavar="N", help="devices that the sampler watches (c); those of the ranks"
    )
    parser.add_argument("--only", type=some_of(PARTS), default=PARTS, metavar="a,b,c,d,e", help="the parts to run")
    parser.add_argument(
        "--strategies", type=some_of(ZERO_STRATEGIES), default=("zero2", "zero3"), help="c to e take the first of them"
    )
    parser.add_argument("--model", default="llama-20m", help="a preset or whatever a sweep may name")
    parser.add_argument(
        "--precision",
        type=Precision,
        choices=list(Precision),
        default=Precision.BF16,
        help="fp32 where the processor is slow at bf16",
    )
    parser.add_argument(
        "--pinned-bare",
        action="store_true",
        help="give the bare loop zerobench's malloc settings too, to tell them apart",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "overhead.json", help="where the raw values go")
    asked = parser.parse_args()
    try:
        resolve_model(asked.model)
    except UserError as error:
        parser.error(str(error))
    return asked


def some_of(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of `a,c` to ("a", "c")."""

    def parse_some(text: str) -> tuple[str, ...]:
        parts = tuple(text.split(","))
        if not set(parts) <= set(choices):
            raise argparse.ArgumentTypeError(f"{text}; choices: {', '.join(choices)}")
        return parts

    return parse_some


def at_least_one(text: str) -> int:
    """A count."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}; choices: a number of at least 1")
    return number


if __name__ == "__main__":
    main()
