"""What the campaign does, in its order: what is worth most first.

A part is one command of its own, and how it goes on where it was cut off: sweeps are resumed and do what is missing,
the rest begins again. Kernels come first and by themselves, since DeepSpeed compiles them at first use, for minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

_KERNELS = """
from deepspeed.accelerator import get_accelerator
for name in ("FusedAdamBuilder", "CPUAdamBuilder"):
    get_accelerator().create_op_builder(name).load(verbose=False)
"""


@dataclass(frozen=True)
class Part:
    """One command of the campaign."""

    name: str
    """Also the folder that its files lie in."""
    what: str
    """One line for people."""
    argv: tuple[str, ...]
    """`{folder}` stands for the part's folder."""
    least_s: float = 60.0
    """It is not begun with less time than this left."""
    is_sweep: bool = False
    """Whether it is a run that can be gone on with."""
    needs: tuple[Path, ...] = ()
    """Files that must be there: predictions that are to be judged."""


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


def _sweep(name: str, what: str, sweep: str, *options: str, least_s: float = 90.0) -> Part:
    argv = _python("-m", "zerobench", "run", sweep, *options)
    return Part(name, what, argv, least_s=least_s, is_sweep=True)


def _own(name: str, what: str, evidence: str = "solo") -> Part:
    """A sweep that lies beside this file and was predicted: for the GPU that it names, on the one that is there."""
    part = _sweep(name, what, str(HERE / f"{name}.yaml"), "--set", f"evidence={evidence}", "--set", "gpu=auto")
    return Part(part.name, what, part.argv, least_s=120.0, is_sweep=True, needs=(HERE / f"{name}_predicted.csv",))


_EIGHT_NODES = ("--set", "num_nodes=8", "--set", "gpus_per_node=8")


def _frontier(name: str, what: str, sweep: str, *options: str) -> Part:
    argv = _python("-m", "zerobench", "run", str(HERE / sweep), *options, "--frontier", "model")
    return Part(name, what, (*argv, "--reports", "{folder}"), least_s=400.0)


PARTS: tuple[Part, ...] = (
    Part("kernels", "DeepSpeed's CUDA and CPU kernels, compiled once", _python("-c", _KERNELS), least_s=240.0),
    Part(
        "tests",
        "the tests that need a GPU",
        _python("-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "tests/memory", "tests/worker"),
    ),
    Part(
        "driver",
        "what each NVML call costs on this driver",
        _python("benchmarks/nvml_calls.py", "--out", "{folder}/calls.json"),
    ),
    _sweep("quickstart", "ZeRO's stages on one GPU, tracker and real driver", "quickstart"),
    _own("cells", "every byte named, and predicted: 1B and 7B, stages, offload, one rank of 1, 8 and 64"),
    _own("figure1", "the ZeRO paper's figure 1: 7.5B on 64 GPUs, one rank of them"),
    _own("h100", "of the cells what 80 GB hold, those first that tell most"),
    _own("h100_speed", "steps of a 1B model on one H100, beside the expected ones", "measured"),
    Part(
        "rates",
        "kernels alone: products, attention, element-wise work, copies, launches",
        _python("benchmarks/gpu_campaign/kernel_rates.py", "--out", "{folder}/kernel_rates.csv"),
    ),
    Part(
        "sustained",
        "kernels repeated for seconds: rate, clock and power",
        _python("benchmarks/gpu_campaign/sustained.py", "--out", "{folder}/sustained.csv"),
    ),
    Part(
        "steps",
        "a plain loop's steps: times, memory, each kernel",
        _python("benchmarks/gpu_campaign/step_times.py", "--out", "{folder}"),
        least_s=120.0,
    ),
    _sweep("ladder", "what each setting gains in speed, 1B and 7B", str(HERE / "ladder.yaml")),
    Part(
        "gains",
        "the ladder as a table: each setting's gain, tokens/s and MFU",
        _python("benchmarks/gpu_campaign/ladder.py", "{folder}/../ladder", "--out", "{folder}/gains.md"),
        least_s=10.0,
    ),
    Part(
        "loops",
        "tokens/s beside a bare DeepSpeed loop, the Trainer and accelerate",
        _python("benchmarks/gpu_campaign/loops.py", "--out", "{folder}/loops.json"),
        least_s=300.0,
    ),
    Part(
        "overhead",
        "sampler and ledger on and off",
        _python("benchmarks/overhead.py", "--model", "llama-1b", "--out", "{folder}/overhead.json"),
        least_s=300.0,
    ),
    _frontier("frontier", "the largest Llama for each stage", "frontier.yaml"),
    _frontier("frontier-8", "as one rank of 8, by stage and offload", "frontier_solo.yaml"),
    _frontier("frontier-64", "as one rank of 64, by stage and offload", "frontier_solo.yaml", *_EIGHT_NODES),
)


def part_names() -> Sequence[str]:
    """The names of all parts, in their order."""
    return [part.name for part in PARTS]
