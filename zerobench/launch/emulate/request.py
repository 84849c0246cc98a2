"""What `zerobench emulate` is asked for, checked: the GPUs, which ranks play, how many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.derived.cluster import Cluster, read_cluster, read_count
from zerobench.config.trial.plain import format_value, one_line

MOST_STEPS = 1000
_ALL = "all"
_LAST = "last"


@dataclass(frozen=True)
class EmulationRequest:
    command: tuple[str, ...]
    cluster: Cluster
    ranks: tuple[int, ...]
    """Which ranks play, in order."""
    steps: int
    name: str | None = None
    reports: Path = Path("reports")
    tries: bool = True
    """Whether changes are tried where it does not fit."""


def read_request(
    command: Sequence[str], *, ranks: str, steps: str, name: str | None, reports: Path, tries: bool, **cluster: Any
) -> EmulationRequest:
    """The command line's words, checked, with those that `read_cluster` reads. Raises UserError: as it does."""
    if not command:
        example = "zerobench emulate --gpus 8 --gpu h200 -- torchrun --nproc-per-node 8 train.py"
        raise UserError(f"COMMAND is missing; give it after two dashes: {example}")
    gpus = read_cluster(**cluster)
    played, count = _read_ranks(ranks, gpus.num_gpus), read_count("--steps", steps, MOST_STEPS)
    return EmulationRequest(tuple(command), gpus, played, count, name, reports, tries)


def _read_ranks(text: str, world_size: int) -> tuple[int, ...]:
    """`0`, `0,last`, `0,7,63` or `all`. Raises UserError: anything else."""
    if text.strip() == _ALL:
        return tuple(range(world_size))
    named = [str(world_size - 1) if word.strip() == _LAST else word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and int(word) < world_size for word in named):
        choices = f"choices: comma-separated ranks from 0 to {world_size - 1}, {_LAST}, or {_ALL}"
        raise UserError(one_line(f"--ranks: {format_value(text)}; {choices}"))
    return tuple(dict.fromkeys(map(int, named)))
