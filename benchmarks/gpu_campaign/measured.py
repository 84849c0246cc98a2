"""What kernel_rates.py and step_times.py measure on a GPU, and times_judged.py reads without one."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kernel:
    """One row of kernel_rates.csv: a class of kernel at one size."""

    kind: str
    shape: str
    seconds: float
    flops: float
    moved_bytes: float

    @property
    def tera_per_s(self) -> float:
        """TFLOP/s where it computes, TB/s where it moves."""
        return (self.flops or self.moved_bytes) / self.seconds / 1e12

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of its shape."""
        return tuple(map(int, self.shape.split("x")))

    @property
    def product(self) -> tuple[int, int, int]:
        """Rows, columns and the inner dimension of a linear layer's pass."""
        tokens, outputs, inputs = self.sizes
        return {
            "product forward": (tokens, outputs, inputs),
            "product by input": (tokens, inputs, outputs),
            "product by weight": (outputs, inputs, tokens),
        }[self.kind]


@dataclass(frozen=True)
class Cell:
    """One configuration of step_times.py."""

    model: str
    how: str
    """`torch` (fused AdamW), `passes` (no optimizer), `lora` (PEFT's adapters in fp32) and `lora-bf16`, `zero0` to
    `zero3`, with `-cpu` for states on the host."""
    micro_batch_size: int = 1
    sequence_length: int = 2048
    checkpointing: bool = False
    traced: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether torch's optimizer updates it."""
        return self.how == "torch" or self.how.startswith("lora")

    @property
    def key(self) -> str:
        """Its row in steps.csv, and its files' name."""
        ckpt = "-ckpt" if self.checkpointing else ""
        return f"{self.model}-{self.how}-mb{self.micro_batch_size}-s{self.sequence_length}{ckpt}"


CELLS = (
    Cell("llama-1b", "passes"),
    Cell("llama-7b", "passes", micro_batch_size=4, checkpointing=True, traced=True),
    Cell("llama-7b", "passes", checkpointing=True),
    Cell("llama-7b", "passes"),
    Cell("llama-7b", "lora", micro_batch_size=4, checkpointing=True, traced=True),
    Cell("llama-7b", "lora-bf16", micro_batch_size=4, checkpointing=True, traced=True),
    Cell("llama-13b", "passes", micro_batch_size=2, checkpointing=True),
    Cell("gpt2-125m", "torch", micro_batch_size=8, sequence_length=1024, traced=True),
    Cell("llama-1b", "torch", traced=True),
    Cell("llama-1b", "zero1", micro_batch_size=4, traced=True),
    Cell("llama-1b", "zero1", traced=True),
    Cell("llama-1b", "zero0", traced=True),
    Cell("llama-1b", "zero3", traced=True),
    Cell("llama-1b", "zero3", micro_batch_size=4, checkpointing=True, traced=True),
    Cell("llama-1b", "zero2", traced=True),
    Cell("gpt2-125m", "zero0", sequence_length=1024),
    Cell("gpt2-125m", "zero1", sequence_length=1024),
    Cell("gpt2-125m", "zero2", sequence_length=1024),
    Cell("gpt2-125m", "zero3", sequence_length=1024),
    Cell("gpt2-125m", "zero0", micro_batch_size=8, sequence_length=1024),
    Cell("gpt2-125m", "zero1", micro_batch_size=8, sequence_length=1024),
    Cell("gpt2-125m", "zero3", micro_batch_size=8, sequence_length=1024),
    Cell("llama-1b", "zero0", micro_batch_size=4),
    Cell("llama-1b", "zero3", micro_batch_size=4),
    Cell("llama-7b", "zero1", checkpointing=True),
    Cell("llama-7b", "zero3", checkpointing=True),
    Cell("llama-7b", "zero1", micro_batch_size=4, checkpointing=True),
    Cell("llama-1b", "zero2-cpu", micro_batch_size=4),
    Cell("llama-1b", "zero1", micro_batch_size=8, checkpointing=True),
    Cell("llama-1b", "zero3", micro_batch_size=8, checkpointing=True),
    Cell("llama-1b", "zero3-cpu", micro_batch_size=4),
)

ADAM_BYTES = 28
"""Of a parameter in fp32: itself, its gradient and two moments read, three of them written."""


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
