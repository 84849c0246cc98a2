"""How fast one kernel stays when it runs for seconds and not for milliseconds: rate, clock and power over time.

    python benchmarks/gpu_campaign/sustained.py [--seconds 4] [--out FILE.csv]

kernel_rates.py times bursts on a cool chip; programs run for hours. A product, an addition and a decoder's block
forward and backward are each repeated without a gap, on random values; one line for each tenth of a second.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaModel

from benchmarks.gpu_campaign.chip import Chip
from benchmarks.gpu_campaign.kernel_rates import drawn

ROOT = Path(__file__).resolve().parent.parent.parent
SLICE_S = 0.1


class Line(NamedTuple):
    """A tenth of a second of one kernel."""

    kernel: str
    at_s: float
    seconds: float
    """Of one repetition."""
    sm_mhz: float
    power_w: float
    reasons: int


def kernels() -> Iterator[tuple[str, Callable[[], object]]]:
    """What is repeated."""
    x, weight = drawn(8192, 4096), drawn(11008, 4096)
    yield "product 8192x11008x4096", lambda: linear(x, weight)
    few, narrow = drawn(2048, 2048), drawn(2048, 2048)
    yield "product 2048x2048x2048", lambda: linear(few, narrow)
    a, b = drawn(1 << 28), drawn(1 << 28)
    total = torch.empty_like(a)
    yield "add 268435456", lambda: torch.add(a, b, out=total)
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=2, num_attention_heads=32)
    config.use_cache = False
    model, ids = LlamaModel(config).to("cuda", torch.bfloat16), torch.randint(32000, (4, 2048), device="cuda")
    yield "two blocks of a 7B, 4x2048", lambda: model(ids).last_hidden_state.sum().backward()


def repeated(name: str, work: Callable[[], object], seconds: float) -> Iterator[Line]:
    """Its lines; the chip rests for a second before."""
    work()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    count = max(1, round(SLICE_S / (time.perf_counter() - begun)))
    time.sleep(1)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(round(seconds / SLICE_S) + 1)]
    with Chip() as chip:
        marks[0].record()
        for earlier, mark in itertools.pairwise(marks):
            for _ in range(count):
                work()
            mark.record()
            earlier.synchronize()  # one slice ahead of the device, so that it has no gap
        torch.cuda.synchronize()
    for earlier, mark in itertools.pairwise(marks):
        at_s = marks[0].elapsed_time(mark) / 1e3
        near = min(chip.samples, key=lambda sample: abs(sample.at_s - at_s))
        each_s = earlier.elapsed_time(mark) / 1e3 / count
        yield Line(name, round(at_s, 3), float(f"{each_s:.4g}"), near.sm_mhz, round(near.power_w), near.reasons)


def main() -> None:
    """Repeat each kernel and keep its lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each kernel")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "sustained.csv")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Line._fields)
        for name, work in kernels():
            writer.writerows(repeated(name, work, asked.seconds))
            file.flush()


if __name__ == "__main__":
    main()
