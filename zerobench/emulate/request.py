"""What `zerobench emulate` is asked for, checked: the GPUs, which ranks play, how many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.errors import UserError
from zerobench.spec.cluster import Cluster, read_cluster, read_count
from zerobench.spec.plain import as_written, one_line

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
    command: Sequence[str],
    *,
    gpus: str,
    gpu: str,
    gpus_per_node: str,
    host_memory: str | None,
    ranks: str,
    steps: str,
    name: str | None,
    reports: Path,
    tries: bool,
) -> EmulationRequest:
    """The command line's words, checked. Raises UserError, one line that begins with the option."""
    if not command:
        example = "zerobench emulate --gpus 8 --gpu h200 -- torchrun --nproc-per-node 8 train.py"
        raise UserError(f"COMMAND is missing; give it after two dashes: {example}")
    cluster = read_cluster(gpu=gpu, gpus=gpus, gpus_per_node=gpus_per_node, host_memory=host_memory)
    return EmulationRequest(
        command=tuple(command),
        cluster=cluster,
        ranks=_read_ranks(ranks, cluster.num_gpus),
        steps=read_count("--steps", steps, MOST_STEPS),
        name=name,
        reports=reports,
        tries=tries,
    )


def _read_ranks(text: str, world_size: int) -> tuple[int, ...]:
    """`0`, `0,last`, `0,7,63` or `all`. Raises UserError: anything else."""
    if text.strip() == _ALL:
        return tuple(range(world_size))
    named = [str(world_size - 1) if word.strip() == _LAST else word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and int(word) < world_size for word in named):
        choices = f"choices: comma-separated ranks from 0 to {world_size - 1}, {_LAST}, or {_ALL}"
        raise UserError(one_line(f"--ranks: {as_written(text)}; {choices}"))
    return tuple(dict.fromkeys(map(int, named)))
